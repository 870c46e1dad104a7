"""One server of an engine: its requests, its weights, and another start with the current weights if it fails.

All methods run in one event loop. A request is sent again if the server fails while it is in flight, so an answer is
never lost, and comes once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlparse

from attrs import define, evolve

from purerl.backends.requests import PendingRequest
from purerl.backends.serving.api import Answer, EngineApi
from purerl.backends.serving.failures import is_result, remedy, same_error
from purerl.backends.serving.http import Http, RefusedError, UnreachableError
from purerl.backends.serving.instances import HEALTH_TIMEOUT, Instance, is_healthy, name_of
from purerl.backends.serving.settings import ServerSettings
from purerl.backends.serving.weights import WeightFiles, WeightStream
from purerl.backends.transfer.buckets import WeightBuckets
from purerl.backends.transfer.sender import Sender, TransferError
from purerl.errors import EngineError
from purerl.protocols import Completion, FinishReason

__all__ = ["ServedRequest", "Server"]

_POLL = 0.1  # seconds until a request is aborted again
_SHORT_POLL = 0.005  # seconds between looks whether requests have ended
_ABORT_TIMEOUT = 30.0  # seconds
_WAITS = (0.0, 0.5, 1.0, 2.0, 4.0)  # seconds before a request is sent again, after each failure of its server
_IDENTITIES = itertools.count()
_OPEN_SERVER = (
    "weights are sent only to a server with a token: start it with PURERL_SERVER_TOKEN in its environment, and set the "
    "same variable for the run, or set server.weight_transfer=directory"
)
_LOG = logging.getLogger(__name__)


@define(eq=False)
class ServedRequest:
    """A request in flight.

    identity  its name in the server, while it waits for an answer
    cause     the error with which the server has failed on it
    """

    pending: PendingRequest
    identity: str | None = None
    is_cancelled: bool = False
    cause: str | None = None


class Server:
    """A server with the interface `api`.

    load      requests that it has been given, and that are not finished
    adapter   the name of the adapter that it has loaded
    restarts  how often it was started again
    """

    def __init__(self, api: EngineApi, settings: ServerSettings, instance: Instance) -> None:
        self.api, self._settings, self._instance = api, settings, instance
        self._lock = asyncio.Lock()  # held while the server is started or gets new weights
        self.adapter: str | None = None
        self._weights: WeightFiles | WeightBuckets | None = None
        self._sender: Sender | None = None
        self._is_asleep = False
        self._last_progress = 0.0
        self._sent: set[ServedRequest] = set()  # requests that wait for an answer
        self._failed: set[ServedRequest] = set()  # those that were in a server that has failed, and are sent again
        self._cause: str | None = None  # of the last failure, if nothing has worked since
        self._aborting: set[asyncio.Task[None]] = set()
        self._is_open = asyncio.Event()  # unset while requests must not be sent: they would get other weights
        self._is_open.set()
        self.load = self.restarts = 0

    @property
    def _http(self) -> Http:
        return self._instance.http

    @property
    def url(self) -> str:
        return self._http.url

    @property
    def generation(self) -> int:
        return self._instance.generation

    @property
    def name(self) -> str:
        return name_of(self.api, self._http)

    # --- requests ----------------------------------------------------------------------------------------------------

    def start(self, request: ServedRequest) -> Coroutine[Any, Any, Completion]:
        """The completion of a request, to be awaited. Raises EngineError if the server cannot be made to work."""
        if self.load == 0:
            self._last_progress = time.monotonic()
        self.load += 1
        return self._complete(request)

    async def _complete(self, request: ServedRequest) -> Completion:
        try:
            return await self._answer(request)
        finally:
            self.load -= 1
            self._failed.discard(request)

    async def _answer(self, request: ServedRequest) -> Completion:
        pending, failures, last = request.pending, 0, ""
        while await self._may_send(request):
            generation = self.generation
            if pending.request.sampling.is_structured:
                pending.restart()  # a server cannot continue a text that has to match something
            try:
                answer = await self._ask(request)
            except UnreachableError as error:
                is_repeated = failures > 1 and error.is_repeatable and last == str(error) and not is_result(last)
                if failures == len(_WAITS) or is_repeated:
                    return evolve(pending.completion("error"), error=f"sent {failures + 1} times: {error}")
                self._failed.add(request)
                await asyncio.sleep(_WAITS[failures])
                failures, last = failures + 1, str(error)
                is_stalled = time.monotonic() - self._last_progress >= self._settings.stall_timeout
                await self.recover(generation, str(error), is_stalled=is_stalled)
            except RefusedError as error:
                return evolve(pending.completion("error"), error=str(error))
            else:
                self._last_progress = time.monotonic()
                self._succeed()
                self._add(pending, answer)
                if answer.finish != "interrupted" or not pending.remaining:
                    return pending.completion(_finish(answer, pending))
        return pending.completion("cancelled")

    def _succeed(self) -> None:
        self._cause = None
        self._instance.succeed()

    async def _may_send(self, request: ServedRequest) -> bool:
        """Wait until requests may be sent, unless `request` is cancelled; return whether it is not."""
        if not request.is_cancelled:
            await self._is_open.wait()
        return not request.is_cancelled

    async def _ask(self, request: ServedRequest) -> Answer:
        """Send a request once. The server has failed if it finishes no request at all for a long time."""
        request.identity = f"{os.getpid()}-{next(_IDENTITIES)}"
        call = self.api.request(request.pending, request.identity, self.adapter)
        task = asyncio.ensure_future(self._http.generate(*call))
        self._sent.add(request)
        try:
            while not task.done():
                idle = time.monotonic() - self._last_progress
                if idle >= self._settings.stall_timeout:
                    text = f"no request has finished for {idle:.0f} seconds"
                    raise UnreachableError(f"{text}, with {self.load} in flight")
                await asyncio.wait({task}, timeout=self._settings.stall_timeout - idle)
            return self.api.answer(task.result(), request.pending)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise RefusedError(f"an answer of {self.name} cannot be read: {error!r}") from error
        finally:
            task.cancel()
            self._sent.remove(request)
            request.identity = None

    async def _abort(self, request: ServedRequest) -> None:
        """Abort a request until it is answered: the server may not have it yet, and then forgets the call."""
        identity, wait = request.identity, _POLL
        while identity is not None and request.identity == identity:
            try:
                await self.api.abort(self._http, identity, timeout=_ABORT_TIMEOUT)
            except (UnreachableError, RefusedError, EngineError) as error:
                _LOG.warning("%s did not abort a request: %s", self.name, error)
            await asyncio.sleep(wait)
            wait *= 2

    def _interrupt(self, request: ServedRequest) -> None:
        """Begin to abort a request."""
        task = asyncio.ensure_future(self._abort(request))
        self._aborting.add(task)
        task.add_done_callback(self._aborting.discard)

    def _add(self, pending: PendingRequest, answer: Answer) -> None:
        start = 0
        for version, count in answer.versions:
            end = start + count
            pending.add(answer.tokens[start:end], answer.logp[start:end], _number(version))
            start = end
        if answer.routes is not None:
            pending.add_routes(answer.routes)

    def cancel(self, request: ServedRequest) -> None:
        """Let the request finish with the tokens so far."""
        if not request.is_cancelled:
            request.is_cancelled = True
            self._interrupt(request)

    # --- weights -----------------------------------------------------------------------------------------------------

    async def interrupt(self) -> None:
        """Abort all requests, wait until they are answered, and send none until `resume`."""
        self._is_open.clear()
        for request in self._sent:
            self._interrupt(request)
        while self._sent:
            await asyncio.sleep(_SHORT_POLL)

    def resume(self, adapter: str | None) -> None:
        """Send requests again, after another rank has loaded weights: those of `adapter`, or of the model."""
        self.adapter = adapter
        self._is_open.set()

    async def update(self, weights: WeightFiles | WeightBuckets) -> None:
        """Load weights. A server that fails to is started again with them."""
        async with self._lock:
            self._weights = weights
            self.adapter = weights.name if isinstance(weights, WeightFiles) and weights.is_adapter else None
            try:
                async with self._deadline():
                    if not self.api.keeps_requests(is_adapter=self.adapter is not None):
                        await self.interrupt()
                    await self._load(weights)
                self._succeed()
            except (UnreachableError, RefusedError, TransferError) as error:
                await self._restart(f"it did not load weights: {error}", cause=_cause_of(error))
            finally:
                self._is_open.set()
            self._last_progress = time.monotonic()

    async def sleep(self) -> None:
        """Release the memory of the devices until `update`. Requests wait meanwhile."""
        async with self._lock:
            level, limit = self._settings.sleep_level, self._settings.update_timeout
            while not self._is_asleep:
                try:
                    async with self._deadline():
                        await self.interrupt()
                        await self.api.sleep(self._http, level=level, timeout=limit)
                        self._is_asleep = True
                except (UnreachableError, RefusedError) as error:
                    await self._restart(f"it did not release its memory: {error}", cause=_cause_of(error))

    async def _load(self, weights: WeightFiles | WeightBuckets) -> None:
        """Let the server load `weights`; if it sleeps, wake it: what it stores beside weights has to wait for these."""
        limit = self._settings.update_timeout
        if self._is_asleep:
            await self.api.wake(self._http, "weights", timeout=limit)
        if isinstance(weights, WeightFiles):
            await self.api.update(self._http, weights, timeout=limit)
        else:
            await self._send(weights)
        if self._is_asleep:
            await self.api.wake(self._http, "kv_cache", timeout=limit)
            self._is_asleep = False

    async def _send(self, weights: WeightBuckets) -> None:
        limit = self._settings.update_timeout
        weights.attach()
        if self._sender is None:
            receivers = await self.api.processes(self._http, timeout=HEALTH_TIMEOUT)
            host, is_local = urlparse(self.url).hostname or "127.0.0.1", not self._settings.urls
            if (token := self._http.token) is None:
                raise RefusedError(_OPEN_SERVER)
            self._sender = Sender(host, receivers, token=token, is_local=is_local, timeout=limit)
        stream = WeightStream(self._sender.address, weights.version)
        sending = asyncio.ensure_future(asyncio.to_thread(self._sender.send, weights))
        loading = asyncio.ensure_future(self.api.update(self._http, stream, timeout=limit))
        try:
            await asyncio.gather(sending, loading)
        except BaseException:
            loading.cancel()
            self._end_sender()
            raise

    def _end_sender(self) -> None:
        if self._sender is not None:
            self._sender.cancel()
            self._sender = None

    @asynccontextmanager
    async def _deadline(self) -> AsyncIterator[None]:
        """Raise UnreachableError after `update_timeout`."""
        try:
            async with asyncio.timeout(self._settings.update_timeout):
                yield
        except TimeoutError as error:
            raise UnreachableError(f"no end after {self._settings.update_timeout:g} seconds") from error

    # --- start, failure and end --------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start the server, or connect to it, and wait until it is ready. Raises EngineError."""
        async with self._lock:
            await self._instance.open()
            self._last_progress = time.monotonic()

    def announce(self) -> None:
        """Let the other ranks that share the server use it."""
        self._instance.announce()

    async def close(self) -> None:
        """End the process, if it is ours."""
        self._end_sender()
        await self._instance.close()

    async def answer_report(self) -> None:
        """Start the server again if another rank has reported that it has failed."""
        failure = self._instance.failure()
        if failure is not None:
            why, is_stalled = failure
            await self.recover(self.generation, why, is_stalled=is_stalled)

    async def recover(self, generation: int, error: str, *, is_stalled: bool) -> None:
        """Make sure that the server works, after a request that was sent to the server of `generation` has failed."""
        async with self._lock:
            if generation != self._instance.generation:
                return
            if not is_stalled and self._instance.is_running and await is_healthy(self._http):
                return
            await self._restart(error, is_stalled=is_stalled)

    async def _restart(self, why: str, *, is_stalled: bool = False, cause: str | None = None) -> None:
        """Start the server again with the current weights. Raises EngineError if that has happened too often.

        Also if it has failed with the same error before: `cause`, or the one in its log. Requests wait until the
        weights are loaded.
        """
        self._end_sender()
        self._is_open.clear()
        self._is_asleep = False
        try:
            self._check_new(why, cause or (None if is_stalled else await self._instance.cause()))
            await self._instance.restart(why, is_stalled=is_stalled)
            self.restarts += 1
            self._last_progress = time.monotonic()
            if self._weights is not None:
                async with self._deadline():
                    await self._load(self._weights)
            self.announce()
        except (UnreachableError, RefusedError, TransferError) as error:
            await self._restart(f"it did not load weights: {error}", cause=_cause_of(error))
        except EngineError as error:
            self._instance.announce(str(error))
            raise
        finally:
            self._is_open.set()

    def _check_new(self, why: str, cause: str | None) -> None:
        """Raise EngineError if the server has failed with `cause` before: since it has worked, or on a request again.

        Requests that have not failed yet were in it too, if they wait for an answer.
        """
        requests = self._sent | self._failed
        if any(same_error(cause, earlier) for earlier in (self._cause, *(request.cause for request in requests))):
            need = "a server that works: another start would end in the same way"
            got, do = why if str(cause) in why else cause, remedy(str(cause), self._instance.log)
            raise EngineError(f"{self.name} has failed twice with the same error", got=got, need=need, do=do)
        self._cause = cause
        for request in requests:
            request.cause = cause


def _cause_of(error: UnreachableError | RefusedError | TransferError) -> str | None:
    """`error`, if the server says what is wrong, so that it says so each time; otherwise None."""
    is_report = isinstance(error, TransferError) and error.is_report
    is_said = isinstance(error, RefusedError) or (isinstance(error, UnreachableError) and error.is_repeatable)
    return str(error) if is_report or is_said else None


def _number(version: str) -> int:
    """The version of weights with this name; the weights with which a server starts have no number."""
    return int(version) if version.isdigit() else 0


def _finish(answer: Answer, pending: PendingRequest) -> FinishReason:
    """The finish reason of a request: a stop token counts before the maximum length, also if the engine disagrees."""
    if answer.finish == "stop" or (pending.tokens and pending.tokens[-1] in pending.request.sampling.stop_tokens):
        return "stop"
    return "length"
