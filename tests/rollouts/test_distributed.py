"""Rollouts of two ranks, whose messages go through a store in this process."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch.distributed import HashStore

from purerl.errors import EngineError
from purerl.ranks import MessageExchange, Ranks
from purerl.rollouts.distributed import Supplier, distributed
from purerl.rollouts.types import Draw, Generate, Trajectory
from tests.rollouts.runtimes import draw, opened


def _on_ranks(
    workflow: Any, stall_timeouts: Sequence[float], function: Callable[[Supplier], object], timeout: float = 60.0
) -> list[object]:
    """The result of `function` on each rank, or the error that it raises. A rank waits `timeout` seconds."""
    store, size = HashStore(), len(stall_timeouts)

    def run(rank: int) -> object:
        ranks = Ranks(rank, size, exchange=MessageExchange(store, rank, size, timeout))
        with opened(None, workflow, stall_timeout=stall_timeouts[rank]) as rollouts:
            try:
                return function(distributed(rollouts, ranks))
            except EngineError as error:
                return error

    with ThreadPoolExecutor(size) as threads:
        return [*threads.map(run, range(size))]


def _all_draws(rollouts: Supplier, number: int) -> list[int]:
    rollouts.submit([draw(k) for k in range(number)])
    return [group.draw for group in rollouts.collect()]


@pytest.mark.slow
def test_a_workflow_that_never_ends_is_an_error() -> None:
    """Of the rank whose limit is over first. The other one then waits for it."""

    async def workflow(draw: Draw, generate: Generate) -> list[Trajectory]:
        await asyncio.Event().wait()
        return []

    first, second = _on_ranks(workflow, [1.0, 60.0], lambda rollouts: _all_draws(rollouts, 4), timeout=4.0)
    assert isinstance(first, EngineError)
    assert re.search(r"nothing happens while waiting for the groups of 2 draws.*\n.*1 seconds", str(first))
    assert isinstance(second, EngineError)


def test_a_rank_without_draws_waits_for_those_of_the_other_rank() -> None:
    async def workflow(draw: Draw, generate: Generate) -> list[Trajectory]:
        await asyncio.sleep(1.0)
        return []

    assert _on_ranks(workflow, [60.0, 0.5], lambda rollouts: _all_draws(rollouts, 1)) == [[0], [0]]


def test_the_time_between_two_waits_does_not_count() -> None:
    may_end = set[int]()
    limit = 3.0

    async def workflow(draw: Draw, generate: Generate) -> list[Trajectory]:
        while draw.number // 2 and draw.number not in may_end:
            await asyncio.sleep(0.01)
        return []

    def collect(rollouts: Supplier) -> list[int]:
        numbers = _all_draws(rollouts, 4)
        while len(numbers) < 2:
            numbers += [group.draw for group in rollouts.collect()]
        time.sleep(1.1 * limit)  # a step of training
        may_end.update((2, 3))
        while groups := rollouts.collect():
            numbers += [group.draw for group in groups]
        return sorted(numbers)

    assert _on_ranks(workflow, [limit, limit], collect) == [[0, 1, 2, 3]] * 2
