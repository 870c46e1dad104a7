"""An asyncio event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import selectors
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

__all__ = ["SERVICE", "EventLoop"]

SERVICE = "purerl service"
"""The name of tasks for which other coroutines wait while they end. The cleanups of `EventLoop.close` end them."""

_LOG = logging.getLogger(__name__)
_CLOSE_TIMEOUT = 30.0  # seconds in which cancelled coroutines must end, and in which each cleanup must


class _Selector(selectors.DefaultSelector):
    """A selector that sets events when the event loop has nothing to run, and waits for a timer, a file, or a call."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: deque[threading.Event] = deque()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:  # otherwise callbacks are ready
            while self.waiting:
                self.waiting.popleft().set()
        return super().select(timeout)


class EventLoop:
    """Runs coroutines in the background, until `close`.

    threads  that `asyncio.to_thread` may use at the same time; None: as many as asyncio does, a few more than cores
    """

    def __init__(self, threads: int | None = None) -> None:
        self._selector = _Selector()
        self._is_closing = self._has_ended = False
        self.asyncio = asyncio.SelectorEventLoop(self._selector)
        if threads is not None:
            self.asyncio.set_default_executor(ThreadPoolExecutor(threads, "purerl event loop"))
        self._thread = threading.Thread(target=self._run, name="purerl event loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.asyncio)
        while not self._has_ended:
            with suppress(SystemExit, KeyboardInterrupt):  # of a task, which has it as its result
                self.asyncio.run_forever()
        self.asyncio.close()

    def _stop(self) -> None:
        self._has_ended = True
        self.asyncio.stop()

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call `function` in the thread of the event loop, soon."""
        self.asyncio.call_soon_threadsafe(function, *arguments)

    def settle(self, timeout: float) -> bool:
        """Wait until every coroutine waits for something outside of the event loop; return False after `timeout`."""
        is_idle = threading.Event()
        self.call(self._selector.waiting.append, is_idle)
        return is_idle.wait(timeout)

    def close(self, cleanups: Sequence[Callable[[], Awaitable[None]]] = ()) -> None:
        """Cancel all coroutines but services, wait for their end, call `cleanups`, and end the thread.

        What does not end in time is a warning: the thread does not keep the process from ending, and ends when it can.
        """
        if self._is_closing:
            return
        self._is_closing = True
        ending = asyncio.run_coroutine_threadsafe(_end(cleanups), self.asyncio)
        ending.add_done_callback(lambda _: self.call(self._stop))
        try:
            ending.result(_CLOSE_TIMEOUT * (3 + len(cleanups)))
        except TimeoutError:
            _LOG.warning("the event loop is blocked by code that does not wait, and is abandoned")
        finally:
            self._thread.join(_CLOSE_TIMEOUT if ending.done() else 0.0)


async def _end(cleanups: Sequence[Callable[[], Awaitable[None]]]) -> None:
    await _cancel(lambda task: task.get_name() != SERVICE)
    for cleanup in (*cleanups, asyncio.get_running_loop().shutdown_asyncgens):
        try:
            await asyncio.wait_for(cleanup(), _CLOSE_TIMEOUT)
        except Exception:  # noqa: BLE001 - the others are called too
            _LOG.warning("%r failed when the event loop was closed", cleanup, exc_info=True)
    await _cancel(lambda task: task.get_name() == SERVICE)


async def _cancel(is_chosen: Callable[[asyncio.Task[Any]], bool]) -> None:
    """Cancel the chosen ones of all other tasks, and wait for their end."""
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and is_chosen(task)]
    for task in tasks:
        task.cancel()
    _, stuck = await asyncio.wait(tasks, timeout=_CLOSE_TIMEOUT) if tasks else ((), ())
    for task in stuck:
        _LOG.warning("a coroutine did not end within %g seconds after it was cancelled: %r", _CLOSE_TIMEOUT, task)
