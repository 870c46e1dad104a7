"""Episodes that are in flight when a run ends: each environment is closed, and nothing is waited for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from purerl.envs.hosts import episode, open_host
from purerl.system.event_loop import EventLoop
from tests.envs.hosts import settings
from tests.rewards.processes import wait_until


@pytest.mark.parametrize("run_in", ["process", "thread", "event_loop"])
def test_episodes_in_flight_are_closed_when_the_event_loop_is(
    run_in: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Their tasks are cancelled, and their environments still answer."""
    log, loop, host, begun = tmp_path / "log", EventLoop(), open_host(settings(run_in=run_in)), list[int]()

    async def waits() -> None:
        async with episode(host) as opened:
            await opened.reset({"log": str(log)}, 0)
            begun.append(1)
            await asyncio.get_running_loop().create_future()

    for _ in range(3):
        asyncio.run_coroutine_threadsafe(waits(), loop.asyncio)
    assert wait_until(lambda: len(begun) == 3)
    loop.close([host.close])
    assert log.read_text() == "closed\n" * 3
    assert caplog.text == ""
