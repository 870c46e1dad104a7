"""Checks of a workflow: its end and its cancellation leave nothing behind."""

from __future__ import annotations

import asyncio
import time

from purerl.testing.rollouts.case import Case, Running, assert_same

__all__ = ["cancelled_draw_leaves_nothing", "cancelled_reward_leaves_nothing", "finished_draw_leaves_nothing"]

_POINTS = 3
_POLL = 0.01  # seconds


def finished_draw_leaves_nothing(case: Case) -> None:
    """A workflow that has returned has no requests in flight, and all its tasks have ended."""
    for draw in case.draws:
        with case.running([draw]) as running:
            outcome = running.outcome()
            assert not outcome.cancelled, f"requests in flight when a workflow has returned: got {outcome.cancelled}"
            _assert_no_tasks(case, running, "after the end of a draw")


def cancelled_draw_leaves_nothing(case: Case) -> None:
    """A draw that is cancelled has no requests, tasks and rewards afterwards. Another draw is not affected."""
    cancelled, other = case.draws[:2]
    number = len(case.run([cancelled, other]).requests)
    for limit in sorted({number * k // _POINTS for k in range(_POINTS)} if number else ()):
        with case.running([cancelled, other]) as running:
            running.generator.limit = limit
            completions, pending = running.generator.completions, running.generator.pending
            running.wait(lambda done=completions, limit=limit: len(done) >= limit, case.timeout)
            in_flight = cancelled.number in running.rollouts.in_flight
            if not in_flight:
                continue
            running.rollouts.cancel([cancelled.number])
            running.wait(lambda keys=pending: not any(k.startswith(f"{cancelled.key}/") for k in keys), case.timeout)
            running.generator.limit = None
            groups = running.finish()
            expected = case.alone(other).groups[other.number]
            if other.number in groups:
                assert_same(groups[other.number], expected, "beside a draw that was cancelled")
            _assert_no_tasks(case, running, f"after {limit} completions, when a draw was cancelled")
            assert not running.scorer.running, "a reward function runs for a draw that was cancelled"


def cancelled_reward_leaves_nothing(case: Case) -> None:
    """A draw that is cancelled while its rewards are computed has no tasks and no rewards afterwards."""
    draw = case.draws[0]
    if not case.alone(draw).inputs:
        return
    with case.running([draw]) as running:
        running.scorer.blocks = True
        running.wait(lambda: running.scorer.running > 0, case.timeout)
        running.rollouts.cancel([draw.number])
        _assert_no_tasks(case, running, "when a draw was cancelled that waited for its reward")
        assert not running.scorer.running, "a reward function runs for a draw that was cancelled"


def _assert_no_tasks(case: Case, running: Running, when: str) -> None:
    deadline = time.monotonic() + case.timeout
    while tasks := running.runtime.run(_tasks(), timeout=case.timeout):
        assert time.monotonic() < deadline, f"tasks {when}: got {tasks}, expected none"
        time.sleep(_POLL)


async def _tasks() -> list[str]:
    return [repr(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]
