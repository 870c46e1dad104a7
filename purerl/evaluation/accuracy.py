"""Which completions are correct: one reward function decides, the same for every metric of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence

from purerl.errors import ConfigError, nearest
from purerl.evaluation.settings import Evaluate
from purerl.rewards.components import short_name
from purerl.rewards.runner import RewardResult
from purerl.settings import no_effect

__all__ = ["is_correct", "select_accuracy_reward"]


def select_accuracy_reward(settings: Evaluate, names: Sequence[str]) -> str | None:
    """The full name of the function that decides whether a completion is correct; None without any function.

    `names` are the reward functions, and after them the gates. The first one decides if `accuracy_reward` is not set.

    Raises: ConfigError if `accuracy_reward` is none of `names`, or the short name of several.
    """
    selected, key = settings.accuracy_reward, "evaluate.accuracy_reward"
    if selected is None:
        return next(iter(names), None)
    if not names:
        raise no_effect(key, selected, "reward functions, one of which decides what is correct")
    matches = [name for name in names if name == selected] or [name for name in names if short_name(name) == selected]
    if not matches:
        known = nearest(selected, {*names, *map(short_name, names)})
        raise ConfigError(key, got=repr(selected), need="one of the reward functions or gates", do=known)
    if len(set(matches)) > 1:
        got, do = f"{selected!r}, the short name of several functions", f"use a full name: {' or '.join(matches)}"
        raise ConfigError(key, got=got, need="one reward function or gate", do=do)
    return matches[0]


def is_correct(result: RewardResult, name: str | None) -> bool | None:
    """Whether the first component that the function `name` returned is at least 1.

    None if the completion has no reward, or if the function returned no component because it does not apply.

    >>> is_correct(RewardResult({}, {"length": 0.5}, by_function={"m:grade": {"grade": 1.0, "format": 0.0}}), "m:grade")
    True
    """
    values = result.by_function.get(name or "", {})
    return next((value >= 1 for value in values.values()), None) if result.reward is not None else None
