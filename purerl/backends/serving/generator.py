"""A `Generator` whose requests are answered by servers.

Requests with the same tokens go to the same server, which computes their keys and values once. Otherwise a request goes
to the server with the fewest in flight. Each request is a call of its own: it has its own seed, is cancelled alone, and
is sent again alone.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import queue
import shutil
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from purerl.backends.requests import PendingRequest, check_requests
from purerl.backends.serving.api import EngineApi
from purerl.backends.serving.instances import Instance
from purerl.backends.serving.model import ServedModel
from purerl.backends.serving.server import ServedRequest, Server
from purerl.backends.serving.settings import ServerSettings
from purerl.backends.serving.weights import WeightFiles, WeightsDirectory, check_names, write_weights
from purerl.backends.transfer.buckets import WeightBuckets
from purerl.backends.weights import check_adapter
from purerl.errors import EngineError
from purerl.images import ImageStore
from purerl.protocols import Capabilities, Completion, Request, SupportsImages, Weights
from purerl.system.devices.accelerator import current_device
from purerl.system.devices.kinds import BETWEEN_DEVICES, HANDLES_OF_DEVICE
from purerl.system.event_loop import EventLoop

__all__ = ["ServedGenerator"]

_CLOSE_TIMEOUT = 60.0  # seconds
_THREADS_OF_SERVER = 4  # one sends weights: if one server waited for the thread of another, they could wait forever
_WATCH = 0.5  # seconds between looks at what other ranks say about the servers


class ServedGenerator:
    """A generator with servers that have the interface `api`; it waits until all of `instances` are ready.

    capabilities  of the engine with `model`; `max_sequence_length` limits requests

    Raises: EngineError if a server does not start; none is left then.
    """

    def __init__(
        self,
        api: EngineApi,
        settings: ServerSettings,
        capabilities: Capabilities,
        model: ServedModel,
        instances: Sequence[Instance],
    ) -> None:
        self.capabilities, self._api, self._settings, self._model = capabilities, api, settings, model
        self._keys: set[str] = set()  # of requests that have not been collected
        self.in_flight: dict[str, tuple[Server, ServedRequest]] = {}  # used in the event loop
        self._results: queue.SimpleQueue[Completion | BaseException] = queue.SimpleQueue()
        self._directory: WeightsDirectory | None = None
        self._buckets: WeightBuckets | None = None
        self._numbers = itertools.count()
        self._loop = EventLoop(_THREADS_OF_SERVER * len(instances))
        self.servers = [Server(api, settings, instance) for instance in instances]
        with self._closed_on_error():
            opening = self._start(_gather(server.open() for server in self.servers))
            opening.result(settings.start_timeout + _CLOSE_TIMEOUT)

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop.asyncio)

    def load_own_weights(self) -> None:
        """Let servers that run already load the weights of the model: they may have those of another one, or of a run.

        Raises: EngineError if the model has no files with weights.
        """
        with self._closed_on_error():
            weights = self._model.weights()
            if weights is None:
                need = "weights for the servers in server.urls, which may have others"
                raise EngineError("the model", got="no safetensors files", need=need, do="save it with save_pretrained")
            self.load_weights(weights, version=0)

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def use_images(self, images: ImageStore) -> None:
        cast(SupportsImages, self._api).use_images(images)

    def submit(self, requests: Sequence[Request]) -> None:
        self._submit(requests, self.servers)

    def copies(self) -> list[str]:
        return [server.name for server in self.servers]

    def submit_to(self, copy: int, requests: Sequence[Request]) -> None:
        self._submit(requests, [self.servers[copy]])

    def _submit(self, requests: Sequence[Request], servers: Sequence[Server]) -> None:
        check_requests(requests, self._keys, self.capabilities, vocab_size=self._model.vocab_size)
        self._keys.update(request.key for request in requests)
        self._loop.call(self._send, list(requests), servers)

    def _send(self, requests: Sequence[Request], servers: Sequence[Server]) -> None:
        """Start all `requests` on `servers`, in the event loop."""
        chosen: dict[tuple[int, ...], Server] = {}
        for request in requests:
            server = chosen.setdefault(tuple(request.content), min(servers, key=lambda server: server.load))
            served = ServedRequest(PendingRequest(request))
            self.in_flight[request.key] = server, served
            task = asyncio.ensure_future(server.start(served))
            task.add_done_callback(partial(self._finish, request.key))

    def _finish(self, key: str, task: asyncio.Task[Completion]) -> None:
        del self.in_flight[key]
        try:
            self._results.put(task.result())
        except BaseException as error:  # noqa: BLE001 - raised by `collect`, also a cancellation
            self._results.put(error)

    def collect(self, timeout: float | None = None) -> list[Completion]:
        completions: list[Completion] = []
        while self._keys:
            try:
                result = self._results.get_nowait() if completions else self._results.get(timeout=timeout)
            except queue.Empty:
                break
            if isinstance(result, BaseException):
                raise result
            self._keys.remove(result.key)
            completions.append(result)
        return completions

    def cancel(self, keys: Sequence[str]) -> None:
        self._loop.call(self._cancel, list(keys))

    def _cancel(self, keys: Sequence[str]) -> None:
        for server, served in (self.in_flight[key] for key in keys if key in self.in_flight):
            server.cancel(served)

    def sleep(self) -> None:
        """Let all servers release the memory of their devices until `load_weights`."""
        self._start(_gather(server.sleep() for server in self.servers)).result(self._settings.longest_update)

    def interrupt(self) -> None:
        """Interrupt all requests, for another rank that changes the servers, until `resume`."""
        self._start(_gather(server.interrupt() for server in self.servers)).result(self._settings.longest_update)

    def resume(self, adapter: str | None) -> None:
        """Continue with the weights that another rank has loaded: those of `adapter`, or of the model."""
        for server in self.servers:
            self._loop.call(server.resume, adapter)

    def announce(self) -> None:
        """Let other ranks use the servers, and start a server again if one of them says that it has failed."""
        self._start(self._watch())

    async def _watch(self) -> None:
        for server in self.servers:
            server.announce()
        try:
            while True:
                await _gather(server.answer_report() for server in self.servers)
                await asyncio.sleep(_WATCH)
        except Exception as error:  # noqa: BLE001 - raised by `collect`
            self._results.put(error)

    def check(self, weights: Weights) -> None:
        """Raise EngineError if the servers cannot load `weights`. Nothing is gathered."""
        check_adapter(weights, self.capabilities)
        check_names(weights, self._model.shapes, is_complete=self._settings.sleep_level == 2)

    def load_weights(self, weights: Weights, *, version: int) -> None:
        self.check(weights)
        limit = self._settings.longest_update
        if weights.adapter is None and self._settings.transfer != "directory":
            self._buckets = buckets = self._new_buckets(version)
            try:
                with self._updating(buckets, limit):
                    buckets.fill(weights, timeout=limit)
            finally:
                buckets.end_staging()
            return
        old = list(self._directory.path.glob("*-version-*")) if self._directory is not None else []
        with self._updating(self._write(weights, version), limit):
            pass
        for directory in old:
            shutil.rmtree(directory, ignore_errors=True)

    def _new_buckets(self, version: int) -> WeightBuckets:
        transfer = self._settings.transfer
        return WeightBuckets(
            version,
            is_shared=transfer in ("shared_memory", HANDLES_OF_DEVICE),
            device=current_device() if transfer in BETWEEN_DEVICES else None,
            readers=len(self.servers),
            old=self._buckets,
        )

    @contextmanager
    def _updating(self, weights: WeightFiles | WeightBuckets, limit: float) -> Iterator[None]:
        """Let the servers load `weights` meanwhile, and wait for them at the end."""
        future = self._start(_gather(server.update(weights) for server in self.servers))
        try:
            yield
            future.result(limit)
        except TimeoutError as error:
            raise EngineError("servers did not load weights", need=f"an answer within {limit:g} seconds") from error
        finally:
            future.cancel()

    def _write(self, weights: Weights, version: int) -> WeightFiles:
        if self._directory is None:
            size = sum(math.prod(shape) * dtype.itemsize for shape, dtype in weights.metadata.values())
            self._directory = WeightsDirectory(self._settings.weights_directory, size)
        directory = self._directory.path / f"{next(self._numbers)}-version-{version}"
        try:
            return write_weights(weights, directory, version)
        except OSError as error:
            shutil.rmtree(directory, ignore_errors=True)
            do = "free space, or set generator.server.weights_directory"
            raise EngineError("weights for the servers cannot be written", got=str(error), do=do) from error

    def close(self) -> None:
        self._loop.close([server.close for server in self.servers])
        if self._directory is not None:
            self._directory.close()
        self._keys.clear()


async def _gather(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run `coroutines` together until all have ended; raise the first exception."""
    results = await asyncio.gather(*coroutines, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
