"""A greedy sample of each draw, whose reward is the baseline of the others, as in ReMax."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import chain, repeat

from attrs import evolve, frozen

from purerl.rewards.components import added
from purerl.rewards.results import RewardResult
from purerl.rollouts.episode_rows import results_of_episodes
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
        totals = chain([result.totals], repeat({}))  # counted once
        pairs = zip(trajectories, totals, strict=False)
        return [_with_baseline(row, evolve(result, totals=own), penalty) for row, own in pairs]


def _with_baseline(trajectory: Trajectory, greedy: RewardResult, penalty: float) -> Trajectory:
    """`trajectory` with the reward of the greedy one. Without this baseline it has no reward, and is masked out."""
    own, totals = trajectory.result, added(trajectory.result.totals, greedy.totals)
    if greedy.reward is not None:
        fields = {**trajectory.fields, "greedy_score": greedy.reward + penalty}
        return evolve(trajectory, fields=fields, result=evolve(own, totals=totals))
    length = len(trajectory.fields["tokens"])
    without = {"mask": [False] * length, "reward": [0.0] * length, "greedy_score": 0.0}
    result = RewardResult(failure=own.failure or greedy.failure, totals=totals)
    return evolve(trajectory, fields={**trajectory.fields, **without}, result=result)
