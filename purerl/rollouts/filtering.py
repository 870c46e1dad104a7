"""The choice of groups: the rows by which an algorithm chooses, and the number of groups that are used."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from purerl.errors import ConfigError, nearest
from purerl.rewards.results import RewardResult
from purerl.rollouts.episode_rows import episodes_of, results_of_episodes
from purerl.rollouts.types import Trajectory

__all__ = ["NAMED_COMPONENTS", "by_metric", "first_groups", "named_components", "number_of_groups"]

NAMED_COMPONENTS = ("correctness", "ranking", "hack")
"""Fields that are the component of the reward with the same name, without its weight."""


def by_metric(trajectories: Sequence[Trajectory], name: str) -> list[dict[str, Any]]:
    """The fields of `trajectories` with the component `name` of the reward, without its weight, as the reward.

    Each row of an episode has the component of the episode, at its last action token. A row without a reward, which is
    masked out, has 0.

    Raises: ConfigError for a row that has a reward and no such component.
    """
    values = {}
    for rows, result in zip(episodes_of(trajectories), results_of_episodes(trajectories), strict=True):
        values |= dict.fromkeys((row.fields["row"] for row in rows), _value(result, name))
    return [
        {**trajectory.fields, "reward": _at_last_action(trajectory.fields, values[trajectory.fields["row"]])}
        for trajectory in trajectories
    ]


def named_components(trajectories: Sequence[Trajectory], name: str) -> list[float]:
    """The field `name`, one of `NAMED_COMPONENTS`, of each row: the component of its episode, without its weight.

    A row whose episode does not have it gets NaN.

    Raises: ConfigError if rows have rewards, and none of them has the component.
    """
    results = results_of_episodes(trajectories)
    known = dict.fromkeys(component for result in results for component in result.components)
    if known and name not in known:
        need = f"a reward function whose component is {name!r}, or that returns one; this run has: {', '.join(known)}"
        do = f"give a reward name = {name!r}, and weight = 0 if it is not to be a part of the reward"
        raise ConfigError(f"the algorithm reads {name!r}", got="no such component", need=need, do=do)
    values = {}
    for rows, result in zip(episodes_of(trajectories), results, strict=True):
        values |= dict.fromkeys((row.fields["row"] for row in rows), result.components.get(name, math.nan))
    return [values[trajectory.fields["row"]] for trajectory in trajectories]


def _value(result: RewardResult, name: str) -> float:
    if result.reward is None:
        return 0.0
    if name not in result.components:
        known = [*result.components]
        need = f"a component of the reward of each completion, such as: {', '.join(known)}"
        raise ConfigError("rollout.filter_metric", got=repr(name), need=need, do=nearest(name, known))
    return result.components[name]


def _at_last_action(fields: Mapping[str, Any], value: float) -> list[float]:
    """The rewards of the tokens of a row: `value` at the last action token, and 0 at the others."""
    actions = [position for position, is_action in enumerate(fields["action"]) if is_action]
    last = actions[-1] if actions else None
    return [value if position == last else 0.0 for position in range(len(fields["tokens"]))]


def number_of_groups(trajectories: Sequence[Trajectory]) -> int:
    """The number of groups that have rows among `trajectories`."""
    return len({trajectory.fields["group"] for trajectory in trajectories})


def first_groups(trajectories: Sequence[Trajectory], count: int) -> tuple[list[Trajectory], int]:
    """The rows of the first `count` groups, and the number of the other groups."""
    groups = [*dict.fromkeys(trajectory.fields["group"] for trajectory in trajectories)]
    used = {*groups[:count]}
    return [t for t in trajectories if t.fields["group"] in used], len(groups[count:])
