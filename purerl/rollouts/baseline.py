"""A greedy sample of each draw, whose reward is the baseline of the others, as in ReMax."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from attrs import evolve, frozen

from purerl.rewards.runner import RewardResult
from purerl.rollouts.rows import results_of_episodes
from purerl.rollouts.types import Draw, Generate, Trajectory, Workflow

__all__ = ["WithGreedyBaseline"]


@frozen
class WithGreedyBaseline:
    """A workflow: the trajectories of `sampled`, with the reward of one greedy trajectory as `greedy_score`.

    greedy   makes one sample of a draw, at temperature 0
    penalty  added to its reward: a function of its number of action tokens
    """

    sampled: Workflow
    greedy: Workflow
    penalty: Callable[[int], float]

    async def __call__(self, draw: Draw, generate: Generate) -> list[Trajectory]:
        compared = evolve(draw, key=f"{draw.key}/greedy")
        trajectories, rows = await asyncio.gather(self.sampled(draw, generate), self.greedy(compared, generate))
        [result, *_] = results_of_episodes(rows)
        penalty = self.penalty(sum(sum(row.fields["action"]) for row in rows))
        return [_with_baseline(trajectory, result, penalty) for trajectory in trajectories]


def _with_baseline(trajectory: Trajectory, greedy: RewardResult, penalty: float) -> Trajectory:
    """`trajectory` with the reward of the greedy one. Without this baseline it has no reward, and is masked out."""
    if greedy.reward is not None:
        return evolve(trajectory, fields={**trajectory.fields, "greedy_score": greedy.reward + penalty})
    length = len(trajectory.fields["tokens"])
    without = {"mask": [False] * length, "reward": [0.0] * length, "greedy_score": 0.0}
    result = RewardResult(failure=trajectory.result.failure or greedy.failure)
    return evolve(trajectory, fields={**trajectory.fields, **without}, result=result)
