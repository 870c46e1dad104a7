"""An asyncio event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

__all__ = ["EventLoop"]

_CLOSE_TIMEOUT = 30.0  # seconds in which cancelled coroutines must end


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
    """Runs coroutines in the background, until `close`."""

    def __init__(self) -> None:
        self._selector = _Selector()
        self.asyncio = asyncio.SelectorEventLoop(self._selector)
        self._thread = threading.Thread(target=self._run, name="purerl event loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.asyncio)
        self.asyncio.run_forever()

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call `function` in the thread of the event loop, soon."""
        self.asyncio.call_soon_threadsafe(function, *arguments)

    def settle(self) -> None:
        """Wait until every coroutine waits for something outside of the event loop."""
        is_idle = threading.Event()
        self.call(self._selector.waiting.append, is_idle)
        while not is_idle.wait(1.0):
            if not self._thread.is_alive():
                return

    def close(self, cleanups: Sequence[Callable[[], Awaitable[None]]] = ()) -> None:
        """Cancel all coroutines, wait for their end, call `cleanups`, and end the thread."""
        if not self._thread.is_alive():
            return
        try:
            timeout = _CLOSE_TIMEOUT * (2 + len(cleanups))
            asyncio.run_coroutine_threadsafe(_cancel_all(cleanups), self.asyncio).result(timeout)
        finally:
            self.call(self.asyncio.stop)
            self._thread.join(_CLOSE_TIMEOUT)
            if not self._thread.is_alive():
                self.asyncio.close()


async def _cancel_all(cleanups: Sequence[Callable[[], Awaitable[None]]]) -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_CLOSE_TIMEOUT)
    for cleanup in cleanups:
        await asyncio.wait_for(cleanup(), _CLOSE_TIMEOUT)
