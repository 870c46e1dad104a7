"""Which completions are correct: one reward function decides, the same for every metric of an evaluation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import takewhile

from purerl.errors import ConfigError, nearest
from purerl.evaluation.settings import Evaluate
from purerl.rewards.components import short_name
from purerl.rewards.results import RewardResult
from purerl.rollouts.rows import ENVIRONMENT
from purerl.settings import no_effect

__all__ = ["describe_accuracy", "is_correct", "select_accuracy_rewards"]

ROUNDING = 1e-6
"""How far below 1 a value may be, because a sum of rewards such as 0.1 is rounded."""


def select_accuracy_rewards(
    settings: Evaluate, names: Sequence[str], routed: Collection[str] = (), models: Collection[str] = ()
) -> tuple[str, ...]:
    """The full names of the rewards of which the first one that applies decides whether a completion is correct.

    names   the rewards, and after them the gates
    routed  those of `names` that apply to some data sources only
    models  those of `names` that are models: their scores need not say what is correct

    If `accuracy_reward` is not set, they are the first of `names` that is no model, or the first ones up to one that
    applies to every row.

    Raises: ConfigError if `accuracy_reward` is none of `names`, or the short name of several.
    """
    selected, key = settings.accuracy_reward, "evaluate.accuracy_reward"
    if selected is None:
        names = [name for name in names if name not in models]
        routed_first = [*takewhile(lambda name: name in routed, names)]
        return tuple(names[: len(routed_first) + 1])
    if not names:
        raise no_effect(key, selected, "reward functions, one of which decides what is correct")
    matches = [name for name in names if name == selected] or [name for name in names if short_name(name) == selected]
    if not matches:
        known = nearest(selected, {*names, *map(short_name, names)})
        raise ConfigError(key, got=repr(selected), need="one of the reward functions or gates", do=known)
    if len(set(matches)) > 1:
        got, do = f"{selected!r}, the short name of several functions", f"use a full name: {' or '.join(matches)}"
        raise ConfigError(key, got=got, need="one reward function or gate", do=do)
    return (matches[0],)


def is_correct(result: RewardResult, names: Sequence[str]) -> bool | None:
    """Whether the value of the first one of the functions `names` that applies is at least 1, up to rounding (1e-6).

    The value of a function is its first component. That of an environment is the sum of its rewards in all turns; the
    components that it reports beside them do not count. None if there is no reward, or if no function applies.

    >>> result = RewardResult({}, {"length": 0.5}, by_function={"m:grade": {"grade": 1.0, "format": 0.0}})
    >>> is_correct(result, ["m:grade"])
    True
    """
    if result.reward is None:
        return None
    values = (value for name in names if (value := _value(name, result)) is not None)
    return next((value >= 1 - ROUNDING for value in values), None)


def _value(name: str, result: RewardResult) -> float | None:
    """The value of the function `name`, or None if it does not apply."""
    components = result.by_function.get(name, {})
    return components.get(ENVIRONMENT) if name == ENVIRONMENT else next(iter(components.values()), None)


def describe_accuracy(names: Sequence[str]) -> str | None:
    """A sentence that says when a completion is correct, if the first one of `names` that applies decides.

    None without any name.

    >>> describe_accuracy(["m:tagged"])
    'a completion is correct if m:tagged gives at least 1; of several components, the first one counts'
    >>> describe_accuracy(["environment"])
    'an episode is correct if the sum of the rewards of its environment is at least 1'
    """
    if not names:
        return None
    if names[0] == ENVIRONMENT:
        return "an episode is correct if the sum of the rewards of its environment is at least 1"
    deciding = names[0] if len(names) == 1 else f"the first one of {', '.join(names)} that applies to its row"
    return f"a completion is correct if {deciding} gives at least 1; of several components, the first one counts"
