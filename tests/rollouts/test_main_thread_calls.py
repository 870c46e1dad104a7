"""Functions that coroutines call in the thread that drives a runtime."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from purerl.rollouts.runtime import Runtime


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    opened = Runtime()
    yield opened
    opened.close()


def _start(runtime: Runtime, functions: list[Callable[[], object]]) -> Future[list[object]]:
    """Let all of `functions` wait for this thread; the future has what each of them returns or raises."""

    async def call_all() -> list[object]:
        return await asyncio.gather(*map(runtime.run_here, functions), return_exceptions=True)

    future = asyncio.run_coroutine_threadsafe(call_all(), runtime.loop.asyncio)
    future.add_done_callback(lambda _: runtime.wake())
    assert runtime.loop.settle(60.0)
    return future


def _drive(runtime: Runtime, future: Future[list[object]]) -> list[object]:
    assert runtime.drive(future.done, waits_for=lambda: "functions", timeout=60.0)
    return future.result(timeout=60.0)


def test_functions_run_in_the_thread_that_drives_and_return_or_raise(runtime: Runtime) -> None:
    def fail() -> None:
        raise ValueError("no value")

    thread, error, number = _drive(runtime, _start(runtime, [threading.get_ident, fail, lambda: 3]))
    assert (thread, repr(error), number) == (threading.get_ident(), "ValueError('no value')", 3)


def test_results_of_functions_that_wait_together_are_delivered_in_one_call_of_the_event_loop(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    future, call, calls = _start(runtime, [lambda k=k: k for k in range(8)]), runtime.loop.asyncio._write_to_self, []
    monkeypatch.setattr(runtime.loop.asyncio, "_write_to_self", lambda: (calls.append(1), call()))
    assert _drive(runtime, future) == [*range(8)]
    assert len(calls) == 1


def test_an_interrupt_is_raised_in_the_thread_that_drives_and_cancels_what_waits(runtime: Runtime) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    future = _start(runtime, [lambda: 1, interrupt, lambda: 2])
    with pytest.raises(KeyboardInterrupt):
        runtime.drive(future.done, waits_for=lambda: "functions", timeout=60.0)
    first, *others = future.result(timeout=60.0)
    assert first == 1
    assert [type(other) for other in others] == [asyncio.CancelledError, asyncio.CancelledError]
