"""What the workflows of a run share: an event loop, an engine, and functions that must run in the main thread.

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
from concurrent.futures import Future
from typing import Any, TypeVar

from purerl.errors import EngineError
from purerl.protocols import Generator, Weights
from purerl.rollouts.engine import Engine
from purerl.rollouts.event_loop import EventLoop

__all__ = ["Runtime"]

_LOG = logging.getLogger(__name__)
_MAX_PUMP = 0.1  # seconds that an engine works in the main thread before it takes new requests
_MAX_POLL = 0.02  # the same in a thread of its own, where other functions wait for it
_WARN_AFTER = 60.0  # seconds

T = TypeVar("T")


class Runtime:
    """An event loop, and the engine `generator`, if there is one.

    background     an engine that decodes inside of `collect` gets a thread of its own too
    stall_timeout  seconds without any progress after which `drive` raises EngineError
    """

    def __init__(self, generator: Generator | None, *, background: bool = False, stall_timeout: float = 1800.0) -> None:
        self.loop = EventLoop()
        self._wake, self._error = threading.Event(), None
        self._jobs: deque[tuple[Callable[[], object], asyncio.Future]] = deque()
        self._stall_timeout = stall_timeout
        self._cleanups: list[Callable[[], Awaitable[None]]] = []
        self.engine = None if generator is None else Engine(generator, self.loop, self._on_request)
        self._thread: _EngineThread | None = None
        if self.engine is not None and (background or not self.engine.generator.capabilities.in_process):
            self._thread = _EngineThread(self.engine, self.fail)

    @property
    def is_in_step(self) -> bool:
        """Whether the engine works only inside of `drive`, so that everything has one order."""
        return self._thread is None

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
        may_decode: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Work until `is_done`, or for `timeout` seconds; return whether it is done.

        may_decode  whether an engine without a thread of its own should decode now
        waits_for   what is missing, for messages

        Raises: what `fail` was called with; EngineError if nothing has happened for too long.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        last = time.monotonic()
        while not self._look(is_done):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            if self._jobs:
                continue
            if self.is_in_step and self.engine is not None and self.engine.has_work and may_decode():
                self.engine.pump(min(remaining, _MAX_PUMP))
                last = time.monotonic()
            elif self._wake.wait(min(_WARN_AFTER, remaining)):
                last = time.monotonic()
            elif remaining > _WARN_AFTER:
                self._check_stall(time.monotonic() - last, waits_for())
        return True

    def _look(self, is_done: Callable[[], bool]) -> bool:
        """Run the functions that wait for this thread, and return whether `is_done`."""
        self._wake.clear()
        self._run_jobs()
        if self.is_in_step and self.engine is not None:
            self.loop.settle()
            self.engine.cancel_due()
        if self._error is not None:
            raise self._error
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

    def _check_stall(self, seconds: float, waits_for: str) -> None:
        if seconds < self._stall_timeout:
            _LOG.warning("nothing has happened for %.0f s while waiting for %s", seconds, waits_for)
            return
        need = f"some progress within {self._stall_timeout:g} seconds (rollout.stall_timeout)"
        do = "see the log of the engine, or raise the limit; the run can be resumed"
        raise EngineError(f"nothing happens while waiting for {waits_for}", need=need, do=do)

    def load_weights(self, weights: Weights, version: int) -> None:
        """Give the engine, if there is one, new weights; requests in flight continue with them."""
        if self.engine is None:
            return
        if self._thread is None:
            self.engine.load_weights(weights, version)
        else:
            self._thread.call(lambda: self.engine.load_weights(weights, version), timeout=self._stall_timeout)

    def run(self, coroutine: Coroutine[Any, Any, T], *, timeout: float) -> T:
        """Run `coroutine` in the event loop, and return its result. It must not need this thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop.asyncio).result(timeout)

    def add_cleanup(self, function: Callable[[], Awaitable[None]]) -> None:
        """Let `close` call `function` in the event loop, after all coroutines have ended."""
        self._cleanups.append(function)

    def close(self) -> None:
        """Cancel all coroutines and requests, and end the threads. The generator is not closed."""
        self.loop.close(self._cleanups)
        if self._thread is not None:
            self._thread.close()


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
        if not self._thread.is_alive():
            raise EngineError("the engine has failed", do="see the first error of the run")
        return future.result(timeout)

    def close(self) -> None:
        self._is_closed = True
        self.wake()
        self._thread.join(60.0)

    def _run(self) -> None:
        while not self._is_closed:
            self._wake.wait()
            self._wake.clear()
            while not self._is_closed and (self._calls or self._engine.has_work):
                self._answer_calls()
                try:
                    self._engine.pump(_MAX_POLL)
                except BaseException as error:  # noqa: BLE001 - raised by the main thread
                    self._fail(error)
                    self._is_closed = True
        self._answer_calls()

    def _answer_calls(self) -> None:
        while self._calls:
            function, future = self._calls.popleft()
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
                future.set_exception(error)
