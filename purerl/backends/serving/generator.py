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
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from purerl.backends.requests import PendingRequest, check_requests
from purerl.backends.serving.api import EngineApi
from purerl.backends.serving.server import ServedRequest, Server
from purerl.backends.serving.settings import ServerSettings
from purerl.backends.serving.weights import check_names, new_directory, write_weights
from purerl.backends.weights import check_adapter
from purerl.errors import EngineError
from purerl.event_loop import EventLoop
from purerl.protocols import Capabilities, Completion, Request, Weights

__all__ = ["ServedGenerator"]

_CLOSE_TIMEOUT = 60.0  # seconds
_RUN = "{run}"  # still in a path if there is no run


class ServedGenerator:
    """A generator with servers that have the interface `api`; it waits until all are ready.

    capabilities  of the engine with this model; `max_sequence_length` limits requests
    vocab_size    token ids of the model
    shapes        the shapes of the model's weights by their names in its files; called when weights are loaded first
    connections   requests that a server gets at the same time; others wait here

    Raises: EngineError if a server does not start; none is left then.
    """

    def __init__(
        self,
        api: EngineApi,
        settings: ServerSettings,
        capabilities: Capabilities,
        *,
        vocab_size: int,
        shapes: Callable[[], Mapping[str, tuple[int, ...]]],
        connections: int,
    ) -> None:
        self.capabilities, self._settings = capabilities, settings
        self._vocab_size, self._shapes = vocab_size, shapes
        self._known_shapes: Mapping[str, tuple[int, ...]] | None = None
        self._keys: set[str] = set()  # of requests that have not been collected
        self.in_flight: dict[str, tuple[Server, ServedRequest]] = {}  # used in the event loop
        self._results: queue.SimpleQueue[Completion | BaseException] = queue.SimpleQueue()
        self._directory: Path | None = None
        self._numbers = itertools.count()
        self._loop = EventLoop()
        logs = Path(tempfile.mkdtemp(prefix="purerl-servers-") if _RUN in settings.logs else settings.logs)
        urls = settings.urls or (None,) * settings.number
        self.servers = [
            Server(api, settings, url=url, log=logs / f"{api.name}-{number}.log", connections=connections)
            for number, url in enumerate(urls)
        ]
        try:
            self._run(_gather(server.open() for server in self.servers), settings.start_timeout + _CLOSE_TIMEOUT)
        except BaseException:
            self.close()
            raise

    def _run(self, coroutine: Coroutine[Any, Any, Any], timeout: float) -> None:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop.asyncio)
        try:
            future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    def submit(self, requests: Sequence[Request]) -> None:
        limit = self.capabilities.max_sequence_length
        check_requests(requests, self._keys, vocab_size=self._vocab_size, max_sequence_length=limit)
        self._keys.update(request.key for request in requests)
        self._loop.call(self._send, list(requests))

    def _send(self, requests: Sequence[Request]) -> None:
        """Start all `requests`, in the event loop."""
        chosen: dict[tuple[int, ...], Server] = {}
        for request in requests:
            server = chosen.setdefault(tuple(request.tokens), min(self.servers, key=lambda server: server.load))
            served = ServedRequest(PendingRequest(request))
            self.in_flight[request.key] = server, served
            task = asyncio.ensure_future(server.start(served))
            task.add_done_callback(partial(self._finish, request.key))

    def _finish(self, key: str, task: asyncio.Task[Completion]) -> None:
        del self.in_flight[key]
        if not task.cancelled():
            self._results.put(task.exception() or task.result())

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

    def load_weights(self, weights: Weights, *, version: int) -> None:
        check_adapter(weights, self.capabilities)
        self._known_shapes = self._known_shapes or self._shapes()
        check_names(weights, self._known_shapes)
        if self._directory is None:
            size = sum(math.prod(shape) * dtype.itemsize for shape, dtype in weights.metadata.values())
            self._directory = new_directory(self._settings.weights_directory, size)
        old = list(self._directory.iterdir())
        directory = self._directory / f"{next(self._numbers)}-version-{version}"
        try:
            files = write_weights(weights, directory, version)
        except OSError as error:
            shutil.rmtree(directory, ignore_errors=True)
            do = "free space, or set generator.server.weights_directory"
            raise EngineError("weights for the servers cannot be written", got=str(error), do=do) from error
        limit = (self._settings.update_timeout + self._settings.start_timeout) * (1 + self._settings.max_restarts)
        try:
            self._run(_gather(server.update(files) for server in self.servers), limit)
        except TimeoutError as error:
            raise EngineError("servers did not load weights", need=f"an answer within {limit:g} seconds") from error
        for directory in old:
            shutil.rmtree(directory, ignore_errors=True)

    def close(self) -> None:
        self._loop.close([server.close for server in self.servers])
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._keys.clear()


async def _gather(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run `coroutines` together until all have ended; raise the first exception."""
    results = await asyncio.gather(*coroutines, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
