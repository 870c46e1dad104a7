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
    """`trajectory` with the reward of the greedy one. Without this baseline it is masked out."""
    mask = [counted and greedy.reward is not None for counted in trajectory.fields["mask"]]
    score = 0.0 if greedy.reward is None else greedy.reward + penalty
    result = evolve(trajectory.result, failure=trajectory.result.failure or greedy.failure)
    return evolve(trajectory, fields={**trajectory.fields, "mask": mask, "greedy_score": score}, result=result)
