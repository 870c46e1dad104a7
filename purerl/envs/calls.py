"""Calls of functions with a deadline: coroutines in an event loop, and all other functions in threads beside it.

A coroutine that misses its deadline is canceled. A thread cannot be ended: it is abandoned, and another one takes its
place. Who started it decides what follows: a worker process is replaced, the run gives up after some such threads.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from purerl.envs.failures import ENVIRONMENT_FILES, CallTimeoutError
from purerl.rewards.loading import is_async
from purerl.rewards.outcomes import awaiting_stack

__all__ = ["Call", "MakeCall", "Threads", "direct", "make_call"]

Call = Callable[..., Awaitable[Any]]
"""(seed, function, *arguments) -> its result, or that of the awaitable that it returns. Raises: what it raises."""

MakeCall = Callable[[float], Call]
"""timeout of each call in seconds -> a function that makes calls."""

RunBlocking = Callable[..., Awaitable[Any]]
"""(function, *arguments, timeout) -> what the function returns, also if this is an awaitable."""


def make_call(run_blocking: RunBlocking, timeout: float, *, before: Callable[[int], None] = lambda seed: None) -> Call:
    """A function that calls others, each for at most `timeout` seconds; it raises CallTimeoutError for a late one.

    `before` is called with the seed before each call of a function that is not a coroutine.
    """

    def run(seed: int, function: Callable[..., Any], *arguments: Any) -> Any:
        before(seed)
        return function(*arguments)

    async def call(seed: int, function: Callable[..., Any], *arguments: Any) -> Any:
        if is_async(function):
            value = function(*arguments)
        else:
            value = await run_blocking(run, seed, function, *arguments, timeout=timeout)
        return await _within(value, timeout) if inspect.isawaitable(value) else value

    return call


async def direct(function: Callable[..., Any], *arguments: Any, timeout: float) -> Any:
    """Call a function that does not block in the event loop."""
    return function(*arguments)


def _as_exception(raised: BaseException) -> Exception:
    """An exception for one that would end an event loop, which is its cause."""
    error = RuntimeError(f"raised {raised!r}")
    error.__cause__ = raised
    return error


async def _within(awaitable: Awaitable[Any], timeout: float) -> Any:
    task = asyncio.ensure_future(_outcome(awaitable))
    try:
        await asyncio.wait({task}, timeout=None if timeout == math.inf else timeout)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not task.done():
        stack = _format(awaiting_stack(awaitable))
        task.cancel()
        raise CallTimeoutError(timeout, stack, is_running=False)
    value, error = task.result()
    if error is not None:
        raise error
    return value


async def _outcome(awaitable: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """The result or the exception of `awaitable`. asyncio would end the loop on KeyboardInterrupt and SystemExit."""
    try:
        return await awaitable, None
    except asyncio.CancelledError:
        return None, RuntimeError("the coroutine was canceled")
    except BaseException as error:  # noqa: BLE001 -- it is raised again by the caller
        return None, error if isinstance(error, Exception) else _as_exception(error)


def _format(stack: traceback.StackSummary) -> str:
    frames = [frame for frame in stack if not frame.filename.endswith((*ENVIRONMENT_FILES, "/threading.py"))]
    return "".join(traceback.StackSummary.from_list(frames).format())


class _Job:
    """A call of a function in some thread.

    started  when it began, in ``time.monotonic()``; None: it waits for a thread
    """

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]):
        self._function, self._arguments = function, arguments
        self._loop = asyncio.get_running_loop()
        self._lock, self._is_over = threading.Lock(), False
        self.finished = self._loop.create_future()
        self.started: float | None = None
        self.thread: int | None = None
        self.is_abandoned = False

    def run(self) -> None:
        self.thread, self.started = threading.get_ident(), time.monotonic()
        value, error = None, None
        try:
            value = self._function(*self._arguments)
        except Exception as raised:  # noqa: BLE001 -- it is raised by the caller
            error = raised
        except BaseException as raised:  # noqa: BLE001 -- in an event loop it would end the loop
            error = _as_exception(raised)
        with self._lock:
            self._is_over = True
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._finish, value, error)

    def _finish(self, value: Any, error: BaseException | None) -> None:
        if not self.finished.done():
            self.finished.set_result((value, error))

    def abandon(self) -> bool:
        """Give up the call; false if it has just ended."""
        with self._lock:
            self.is_abandoned = not self._is_over
        return self.is_abandoned

    def stack(self) -> str:
        frame = sys._current_frames().get(self.thread or 0)  # noqa: SLF001 -- documented, in spite of its name
        return _format(traceback.extract_stack(frame)) if frame else ""


class Threads:
    """Threads that run functions which block. Each runs one call after the other.

    number     how many there are
    abandoned  how many calls did not end within their deadline
    """

    def __init__(self, number: int):
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self.number, self.abandoned = number, 0
        for _ in range(number):
            self._start()

    def _start(self) -> None:
        threading.Thread(target=self.serve, name="purerl environments", daemon=True).start()

    def serve(self) -> None:
        """Run calls in this thread, until one of them is abandoned or `close` is called."""
        while (job := self._jobs.get()) is not None:
            job.run()
            if job.is_abandoned:
                return

    def close(self) -> None:
        """Let all threads end that run no call."""
        for _ in range(self.number + self.abandoned + 1):
            self._jobs.put(None)

    async def run(self, function: Callable[..., Any], *arguments: Any, timeout: float) -> Any:
        """Call `function` in one of the threads. The time that it waits for a thread does not count.

        If this is canceled, the call runs to its end or to its deadline.

        Raises: CallTimeoutError after `timeout` seconds; what the function raises.
        """
        job = _Job(function, arguments)
        self._jobs.put(job)
        watched = asyncio.ensure_future(self._watch(job, timeout))
        value, error = await asyncio.shield(watched)
        if error is not None:
            raise error
        return value

    async def _watch(self, job: _Job, timeout: float) -> tuple[Any, BaseException | None]:
        remaining = timeout
        while not job.finished.done():
            await asyncio.wait({job.finished}, timeout=None if remaining == math.inf else max(remaining, 0.001))
            remaining = timeout if job.started is None else job.started + timeout - time.monotonic()
            if remaining <= 0 and not job.finished.done():
                stack = job.stack()
                if job.abandon():
                    self.abandoned += 1
                    self._start()
                    return None, CallTimeoutError(timeout, stack, is_running=True)
        return job.finished.result()
