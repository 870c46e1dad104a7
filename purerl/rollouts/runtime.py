"""Resources shared by the workflows of a run: an event loop, an engine, and calls in the main thread.

An engine that decodes inside of `Generator.collect` works only while the main thread waits for groups: then everything
has one order, and a run can be repeated exactly. Any other engine has a thread of its own that collects from it, so
sampling continues while the main thread trains.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

from purerl.errors import EngineError
from purerl.protocols import Generator, Weights
from purerl.rollouts.engine import Engine
from purerl.rollouts.types import Generate
from purerl.system.event_loop import EventLoop

__all__ = ["Runtime"]

_LOG = logging.getLogger(__name__)
_MAX_PUMP = 0.1  # seconds that an engine works in the main thread before it takes new requests
_MAX_POLL = 0.02  # the same in a thread of its own, where other functions wait for it
_MAX_SETTLE = 0.1  # seconds until functions that wait for the main thread run, although the event loop is busy
_WARN_AFTER = 60.0  # seconds
_CLOSE_TIMEOUT = 60.0  # seconds

T = TypeVar("T")


class Runtime:
    """An event loop, and the engine `generator`, if there is one; `attach` gives it one later.

    background     an engine that decodes inside of `collect` gets a thread of its own too
    stall_timeout  seconds without any progress after which `drive` raises EngineError
    """

    def __init__(
        self, generator: Generator | None = None, *, background: bool = False, stall_timeout: float = 1800.0
    ) -> None:
        self.loop = EventLoop()
        self._wake, self._error = threading.Event(), None
        self._jobs: deque[tuple[Callable[[], object], asyncio.Future]] = deque()
        self._stall_timeout = stall_timeout
        self._last_event = self._last_warning = 0.0  # as time.monotonic()
        self._cleanups: list[Callable[[], Awaitable[None]]] = []
        self.engine: Engine | None = None
        self._thread: _EngineThread | None = None
        if generator is not None:
            self.attach(generator, background=background)

    def attach(self, generator: Generator, *, background: bool = False) -> None:
        """Sample with `generator`: for what must start before a model is loaded."""
        self.engine = Engine(generator, self.loop, self._on_request)
        if background or not generator.capabilities.in_process:
            self._thread = _EngineThread(self.engine, self.fail)

    @property
    def is_in_step(self) -> bool:
        """Whether the engine works only inside of `drive`, so that everything has one order."""
        return self._thread is None

    @property
    def may_decode(self) -> bool:
        """Whether `drive` should let the engine decode: it has no thread of its own, and requests."""
        return self.is_in_step and self.engine is not None and self.engine.may_decode

    def episodes(self, *, in_lockstep: bool) -> Callable[[Generate], AbstractContextManager[Generate]]:
        """Opens the requests of an episode. In lockstep they wait for each other, if the engine has no own thread."""
        if self.engine is None:
            return nullcontext
        return partial(self.engine.lockstep.episode, waits=in_lockstep and self.is_in_step)

    def _on_request(self) -> None:
        if self._thread is not None:
            self._thread.wake()
        else:
            self.wake()

    def wake(self) -> None:
        """Let `drive` look again whether it is done."""
        self._wake.set()

    def fail(self, error: BaseException) -> None:
        """Let `drive` raise `error`: the run cannot continue."""
        self._error = self._error or error
        self.wake()

    def run_here(self, function: Callable[[], T]) -> Awaitable[T]:
        """Call `function` in the thread that calls `drive`. For code that does not run in any other thread."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.append((function, future))
        self.wake()
        return future

    def drive(
        self,
        is_done: Callable[[], bool],
        *,
        waits_for: Callable[[], str],
        timeout: float | None = None,
        since: float | None = None,
    ) -> bool:
        """Work until `is_done`, or for `timeout` seconds; return whether it is done.

        waits_for  what is missing, for messages
        since      when the wait began of which this call is a part, as time.monotonic(); None: now

        Raises: what `fail` was called with; EngineError if nothing has happened for too long.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        self._last_event = max(self._last_event, time.monotonic() if since is None else since)
        while not (seen := self._look(is_done)):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            if seen is None:
                self._check_stall(waits_for)
            elif self.may_decode:
                self._decode(self.engine, deadline)
            elif not self._wake.wait(min(remaining, _WARN_AFTER, max(0.0, self._stall_timeout - self._idle_seconds))):
                self._check_stall(waits_for)
        return True

    def _decode(self, engine: Engine, deadline: float) -> None:
        """Let the engine work until a request has finished, something has woken this thread, or the deadline."""
        remaining = deadline - time.monotonic()
        while remaining > 0 and not engine.pump(min(remaining, _MAX_PUMP)) and not self._wake.is_set():
            remaining = deadline - time.monotonic()

    def _look(self, is_done: Callable[[], bool]) -> bool | None:
        """Run the functions that wait for this thread, and return whether `is_done`; None if that is not clear yet."""
        if self._wake.is_set() or self._jobs:
            self._last_event = time.monotonic()
        self._wake.clear()
        self._run_jobs()
        is_settled = not self.is_in_step or self.engine is None or self.loop.settle(_MAX_SETTLE)
        if self._error is not None:
            raise self._error
        if self._jobs or not is_settled:
            return None
        if self.is_in_step and self.engine is not None:
            self.engine.submit_due()
        return is_done()

    def _run_jobs(self) -> None:
        """Run the functions that wait now, and deliver their results together: each delivery wakes another thread."""
        results: list[tuple[asyncio.Future, object, Exception | None]] = []
        jobs = [self._jobs.popleft() for _ in range(len(self._jobs))]
        try:
            for function, future in jobs:
                try:
                    results.append((future, None if future.done() else function(), None))
                except Exception as error:  # noqa: BLE001 - it is raised where the result is awaited
                    results.append((future, None, error))
        finally:  # after a KeyboardInterrupt, which is raised here, what waits is cancelled
            if jobs:
                self.loop.call(_deliver, results, [future for _, future in jobs[len(results) :]])

    @property
    def _idle_seconds(self) -> float:
        """Seconds since something has happened."""
        last = self._last_event if self.engine is None else max(self._last_event, self.engine.last_progress)
        return time.monotonic() - last

    def _check_stall(self, waits_for: Callable[[], str]) -> None:
        idle = self._idle_seconds
        if idle >= self._stall_timeout:
            need = f"some progress within {self._stall_timeout:g} seconds (rollout.stall_timeout)"
            do = "see the log of the engine, or raise the limit; the run can be resumed"
            raise EngineError(f"nothing happens while waiting for {waits_for()}", need=need, do=do)
        if min(idle, time.monotonic() - self._last_warning) >= _WARN_AFTER:
            self._last_warning = time.monotonic()
            _LOG.warning("nothing has happened for %.0f s while waiting for %s", idle, waits_for())

    def load_weights(self, weights: Weights, version: int) -> None:
        """Give the engine, if there is one, new weights; requests in flight continue with them."""
        if self.engine is not None:
            self._call(partial(self.engine.load_weights, weights, version))

    def sleep(self) -> None:
        """Let the engine release the memory of its devices until `load_weights`, if it can."""
        if self.engine is not None and self.engine.generator.capabilities.sleeps:
            self._call(self.engine.sleep)

    def _call(self, function: Callable[[], object]) -> None:
        """Call a function of the engine, in the thread of the engine if it has one."""
        if self._thread is None:
            function()
        else:
            self._thread.call(function, timeout=self._stall_timeout)

    def run(self, coroutine: Coroutine[Any, Any, T], *, timeout: float) -> T:
        """Run `coroutine` in the event loop, and return its result. It must not need this thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop.asyncio).result(timeout)

    def add_cleanup(self, function: Callable[[], Awaitable[None]]) -> None:
        """Let `close` call `function` in the event loop, after all coroutines have ended."""
        self._cleanups.append(function)

    def clean_up(self, function: Callable[[], Awaitable[None]]) -> None:
        """Call `function`, which was given to `add_cleanup`, now and not in `close`."""
        self._cleanups.remove(function)
        self.run(_awaited(function), timeout=self._stall_timeout)

    def close(self) -> None:
        """Cancel all coroutines and requests, and end the threads. The generator is not closed.

        What does not end in time is a warning.
        """
        try:
            self.loop.close(self._cleanups)
        finally:
            if self._thread is not None:
                self._thread.close()
            elif self.engine is not None:
                _close_engine(self.engine)


def _close_engine(engine: Engine) -> None:
    try:
        engine.close(_CLOSE_TIMEOUT)
    except Exception:  # noqa: BLE001 - a generator that has failed may fail again
        _LOG.warning("the requests in flight could not be cancelled", exc_info=True)


async def _awaited(function: Callable[[], Awaitable[None]]) -> None:
    await function()


def _deliver(
    results: Sequence[tuple[asyncio.Future, object, Exception | None]], cancelled: Sequence[asyncio.Future]
) -> None:
    """Set the results or exceptions of futures, unless nobody waits anymore."""
    for future in cancelled:
        future.cancel()
    for future, result, error in results:
        if future.done():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


class _EngineThread:
    """Collects from an engine in a thread of its own. `fail` is called with an exception that the engine raises."""

    def __init__(self, engine: Engine, fail: Callable[[BaseException], None]) -> None:
        self._engine, self._fail = engine, fail
        self._wake, self._is_closed = threading.Event(), False
        self._calls: deque[tuple[Callable[[], object], Future]] = deque()
        self._thread = threading.Thread(target=self._run, name="purerl engine", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def call(self, function: Callable[[], T], *, timeout: float) -> T:
        """Call `function` between two calls of `collect`, and return its result."""
        future: Future[T] = Future()
        self._calls.append((function, future))
        self.wake()
        deadline = time.monotonic() + timeout
        while not wait([future], 1.0).done:
            if not self._thread.is_alive():
                raise EngineError("the engine has failed", do="see the first error of the run")
            if time.monotonic() >= deadline:
                need = f"an answer within {timeout:g} seconds (rollout.stall_timeout)"
                raise EngineError("the engine does not return from collect()", need=need)
        return future.result()

    def close(self) -> None:
        self._is_closed = True
        self.wake()
        self._thread.join(_CLOSE_TIMEOUT)
        if self._thread.is_alive():
            _LOG.warning("the engine has not returned from collect() within %g seconds", _CLOSE_TIMEOUT)

    def _run(self) -> None:
        while not self._is_closed:
            self._wake.wait()
            self._wake.clear()
            while not self._is_closed and (self._calls or self._engine.has_work):
                self._answer_calls()
                try:
                    self._engine.submit_due()
                    self._engine.pump(_MAX_POLL)
                except BaseException as error:  # noqa: BLE001 - raised by the main thread
                    return self._fail(error)
        self._answer_calls()
        return _close_engine(self._engine)

    def _answer_calls(self) -> None:
        while self._calls:
            function, future = self._calls.popleft()
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
                future.set_exception(error)
