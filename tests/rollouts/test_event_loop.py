"""The event loop: it waits for what is ready, and closing it leaves nothing."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from purerl.rollouts.types import Draw, Generate, Trajectory
from purerl.system import event_loop
from purerl.system.event_loop import EventLoop
from tests.rollouts.runtimes import draw, one_turn, opened, scripted, wait_until

# --- the event loop ----------------------------------------------------------------------------------------------


def test_settle_waits_for_everything_that_is_ready() -> None:
    loop, steps = EventLoop(), []

    async def count() -> None:
        for k in range(100):
            await asyncio.sleep(0)
            steps.append(k)
        await asyncio.get_running_loop().create_future()

    future = asyncio.run_coroutine_threadsafe(count(), loop.asyncio)
    assert loop.settle(20.0)
    assert len(steps) == 100
    loop.close()
    assert future.cancelled()


def test_settle_gives_up_on_code_that_never_waits() -> None:
    loop, is_over = EventLoop(), threading.Event()
    loop.call(is_over.wait)
    assert not loop.settle(0.01)
    is_over.set()
    assert loop.settle(20.0)
    loop.close()
    loop.close()


def test_exit_of_a_task_does_not_end_the_event_loop() -> None:
    async def leaves(draw: Draw, generate: Generate) -> list[Trajectory]:
        raise SystemExit(3)

    async def child_leaves(draw: Draw, generate: Generate) -> list[Trajectory]:
        return await asyncio.ensure_future(leaves(draw, generate))

    for workflow in (leaves, child_leaves):
        with opened(None, workflow) as rollouts:
            rollouts.submit([draw(0)])
            [group] = rollouts.collect()
            assert group.failure is not None
            assert "SystemExit: 3" in group.failure.traceback


# --- closing -----------------------------------------------------------------------------------------------------


def test_close_cancels_coroutines_and_requests() -> None:
    generator, ended = scripted(), []

    async def workflow(draw: Draw, generate: Generate) -> list[Trajectory]:
        try:
            return await one_turn(draw, generate)
        finally:
            ended.append(draw.number)

    with opened(generator, workflow) as rollouts:
        generator.limit = 0
        rollouts.submit([draw(0), draw(1)])
        assert rollouts.collect(timeout=0.05) == []
        assert len(generator.pending) == 2
    assert sorted(ended) == [0, 1]
    assert generator.pending == {}
    assert generator.collect(0.0) == [], "the completions were collected"


def test_close_cancels_requests_of_an_engine_with_a_thread() -> None:
    generator = scripted()
    generator.limit = 0
    with opened(generator, background=True) as rollouts:
        rollouts.submit([draw(0)])
        wait_until(lambda: bool(generator.pending))
    assert generator.pending == {}
    assert generator.cancelled == ["0/0"]


def test_close_warns_about_what_does_not_end(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(event_loop, "_CLOSE_TIMEOUT", 0.05)
    is_over, cleaned = threading.Event(), []

    async def stubborn(draw: Draw, generate: Generate) -> list[Trajectory]:
        while not is_over.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        return []

    async def broken() -> None:
        raise OSError("no such process")

    async def clean() -> None:
        cleaned.append(1)

    with opened(None, stubborn) as rollouts, caplog.at_level(logging.WARNING):
        rollouts.runtime.add_cleanup(broken)
        rollouts.runtime.add_cleanup(clean)
        rollouts.submit([draw(0)])
        rollouts.runtime.loop.settle(20.0)
        rollouts.runtime.close()
        is_over.set()
    assert "a coroutine did not end within 0.05 seconds" in caplog.text
    assert "OSError: no such process" in caplog.text
    assert cleaned == [1], "after a cleanup that has failed"


def test_close_abandons_a_blocked_event_loop(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(event_loop, "_CLOSE_TIMEOUT", 0.05)
    is_over = threading.Event()

    async def blocks(draw: Draw, generate: Generate) -> list[Trajectory]:
        is_over.wait()
        return []

    with opened(None, blocks) as rollouts, caplog.at_level(logging.WARNING):
        rollouts.submit([draw(0)])
        rollouts.runtime.close()
        is_over.set()
    assert "the event loop is blocked" in caplog.text
    wait_until(rollouts.runtime.loop.asyncio.is_closed)
