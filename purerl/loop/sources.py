"""Where the rows of a step come from: groups that the policy has sampled, or examples of the data.

A source is called with the state of the loop and a clock. It takes groups from a window, advances `num_draws`, and
returns the rows and its metrics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Protocol

import torch
from attrs import evolve, frozen

from purerl.algos.algebra import Algorithm, keep_all, reads_of, select_rows
from purerl.algos.parts.shaping import overlong_penalty
from purerl.batch import collate
from purerl.data.examples import DataSet
from purerl.loop.failures import RunFailures
from purerl.loop.metrics import mean_metrics, reward_metrics
from purerl.loop.metrics.distributions import reward_spread
from purerl.loop.model_rewards import ModelRewards
from purerl.loop.state import Clock, LoopState
from purerl.loop.window import Window
from purerl.rewards.results import RewardResult
from purerl.rollouts.episode_rows import episodes_of, results_of_episodes
from purerl.rollouts.settings import Overlong, Rollout
from purerl.rollouts.types import Group, Trajectory

__all__ = ["ExampleSource", "RolloutSource", "Source", "components_of", "length_penalty"]


class Source(Protocol):
    """Makes the rows of one step, of groups from its window."""

    @property
    def window(self) -> Window: ...

    def __call__(self, state: LoopState, clock: Clock) -> tuple[LoopState, list[Trajectory], dict[str, float]]: ...


@frozen
class ExampleSource:
    """Rows of `batch_size` demonstrations or preference pairs, without those that have an image that is damaged."""

    window: Window
    failures: RunFailures
    batch_size: int

    def __call__(self, state: LoopState, clock: Clock) -> tuple[LoopState, list[Trajectory], dict[str, float]]:
        self.failures.start(state.step + 1)
        self.failures.expect(self.batch_size)
        groups = self.window.take(self.batch_size, state.step)
        rows = [trajectory for group in groups for trajectory in group.trajectories]
        failed = sum(group.failure is not None for group in groups)
        metrics = {"rollout/failed": float(failed)} if failed else {}
        return evolve(state, num_draws=self.window.num_draws), rows, metrics


@frozen(kw_only=True)
class RolloutSource:
    """Rows of `batch_size` groups that the policy has sampled and that the algorithm selects.

    Groups that are not kept are replaced by new ones, at most `max_resample_rounds` times. If no completion has a
    reward, none is kept. `model_rewards` scores groups before the algorithm selects; their examples are rows of `data`.
    """

    window: Window
    failures: RunFailures
    settings: Rollout
    algorithm: Algorithm
    batch_size: int
    data: DataSet
    model_rewards: ModelRewards
    components: Mapping[str, str]

    def __call__(self, state: LoopState, clock: Clock) -> tuple[LoopState, list[Trajectory], dict[str, float]]:
        groups: list[Group] = []
        kept: list[Trajectory] = []
        self.failures.start(state.step + 1)
        for _ in range(1 + self.settings.max_resample_rounds):
            num_kept = _number_of_groups(kept)
            count = self.batch_size - num_kept
            self.failures.expect(count * self.settings.samples_per_prompt)
            with clock("rollout"):
                taken = self.window.take(count, state.step, num_kept=num_kept)
            if self.model_rewards.models:
                with clock("reward"):
                    taken = self.model_rewards(
                        taken, self.data, self.settings.samples_per_prompt, self.failures.add_missing
                    )
            groups += taken
            kept += self._selected([trajectory for group in taken for trajectory in group.trajectories])
            if _number_of_groups(kept) == self.batch_size:
                break
        with clock("rollout"):
            num_cancelled = self.window.cancel_surplus(state.step)
        if all(trajectory.result.reward is None for trajectory in kept):
            kept = []
        sampled = [trajectory for group in groups for trajectory in group.trajectories]
        metrics = self._metrics(groups, sampled, kept)
        if self.settings.num_extra_groups:
            metrics["rollout/cancelled"] = num_cancelled
        state = evolve(state, num_draws=self.window.num_draws, in_flight=tuple(self.window.in_flight))
        return state, self._with_optional_fields(kept), metrics

    def _metrics(
        self, groups: Sequence[Group], sampled: Sequence[Trajectory], kept: Sequence[Trajectory]
    ) -> dict[str, float]:
        lengths = [sum(trajectory.fields["action"]) for trajectory in sampled]
        metrics: dict[str, float] = {"rollout/sampled": len(sampled), "rollout/tokens": sum(lengths)}
        metrics["rollout/failed"] = sum(group.failure is not None for group in groups)
        if not sampled:
            return metrics
        metrics |= {"rollout/kept_fraction": len(kept) / len(sampled)}
        results = results_of_episodes(sampled)
        labels = [rows[0].fields["group"] for rows in episodes_of(sampled)]
        metrics |= reward_metrics(results) | reward_spread([result.reward for result in results], labels)
        metrics |= mean_metrics([trajectory.metrics for trajectory in sampled])
        if self.settings.overlong:
            penalty = length_penalty(self.settings.overlong, self.settings.max_tokens)
            metrics["reward/overlong"] = sum(map(penalty, lengths)) / len(lengths)
        return metrics

    def _selected(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        if self.algorithm.select is keep_all or not trajectories:
            return [*trajectories]
        keep = select_rows(self.algorithm, collate([trajectory.fields for trajectory in trajectories])).tolist()
        return [trajectory for trajectory, is_kept in zip(trajectories, keep, strict=True) if is_kept]

    def _with_optional_fields(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """`trajectories` with the fields that only some algorithms read, if this one does."""
        functions = {"score": _scores, "components": self._components}
        columns = {name: f(trajectories) for name, f in functions.items() if name in reads_of(self.algorithm)}
        if not columns:
            return [*trajectories]
        added = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
        return [evolve(t, fields={**t.fields, **new}) for t, new in zip(trajectories, added, strict=True)]

    def _components(self, trajectories: Sequence[Trajectory]) -> list[list[float]]:
        return components_of([trajectory.result for trajectory in trajectories], self.components)


def _scores(trajectories: Sequence[Trajectory]) -> list[float]:
    """The reward of the episode of each row."""
    results = zip(episodes_of(trajectories), results_of_episodes(trajectories), strict=True)
    scores = {row.fields["row"]: result.reward or 0.0 for rows, result in results for row in rows}
    return [scores[trajectory.fields["row"]] for trajectory in trajectories]


def components_of(results: Sequence[RewardResult], rewards: Mapping[str, str]) -> list[list[float]]:
    """The weighted reward components of each of `results`, in one order for all: that of `rewards`.

    `rewards` are the names of the reward functions, each with that of its own component. A component that a row does
    not have is NaN, and so is that of a function that applies to none of the rows. Components of others come first.
    """
    known = dict.fromkeys(name for result in results for name in result.weighted_components)
    found = {function: _names_of(function, results) or [own] for function, own in rewards.items()}
    of_rewards = dict.fromkeys(chain.from_iterable(found.values()))
    names = [*(name for name in known if name not in of_rewards), *of_rewards]
    return [[result.weighted_components.get(name, math.nan) for name in names] for result in results]


def _names_of(function: str, results: Sequence[RewardResult]) -> list[str]:
    """The components of `function` in `results`."""
    return [*dict.fromkeys(name for result in results for name in result.by_function.get(function, ()))]


def length_penalty(settings: Overlong | None, max_tokens: int) -> Callable[[int], float]:
    """The penalty for the length of a completion with this number of tokens; 0 without `settings`."""
    if settings is None:
        return lambda length: 0.0

    def penalty(length: int) -> float:
        tokens = torch.tensor([length], dtype=torch.float64)
        return overlong_penalty(tokens, max_length=max_tokens, buffer=settings.buffer, factor=settings.factor).item()

    return penalty


def _number_of_groups(trajectories: Sequence[Trajectory]) -> int:
    return len({trajectory.fields["group"] for trajectory in trajectories})
