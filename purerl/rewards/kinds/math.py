r"""A reward for answers in mathematics, with settings: `purerl.rewards.math.math`, or `boxed`.

The reward is 1 if the answer of the completion equals the ground truth, and 0 otherwise. Numbers are equal if

    |answer - ground truth| <= max(relative_tolerance |ground truth|, absolute_tolerance)

The page "Answers in mathematics" lists the answers that are equal by default.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from attrs import frozen

from purerl.rewards import math
from purerl.rewards.adapters import RowCheck
from purerl.rewards.answers import Rules
from purerl.rewards.kinds.numeric import TOLERANCE
from purerl.rewards.truths import formula_truth
from purerl.settings import boolean, setting

__all__ = ["Config", "build", "columns", "row_check"]


@frozen(kw_only=True)
class Config:
    """Settings of the kind `math`."""

    relative_tolerance: float = setting("largest relative error of a number", default=0.0, **TOLERANCE)
    absolute_tolerance: float = setting("largest absolute error of a number", default=0.0, **TOLERANCE)
    evaluated: bool = setting(
        "whether arithmetic must be done: 1 + 1 is not accepted for 2, because a model could repeat the problem",
        default=True,
        **boolean(),
    )
    only_boxed: bool = setting(
        "whether the answer must be in a box; otherwise it may follow a phrase such as `the answer is`",
        default=False,
        **boolean(),
    )


def build(config: Config) -> Callable[..., float]:
    r"""The reward function with the settings `config`.

    >>> reward = build(Config(relative_tolerance=0.01))
    >>> reward(r"so \boxed{3.14}", {"answer": r"\pi"})
    1.0
    """
    rules = Rules(config.relative_tolerance, config.absolute_tolerance, config.evaluated)
    return partial(math.boxed if config.only_boxed else math.math, rules=rules)


def columns(config: Config) -> list[Any]:
    """The columns that the reward reads."""
    return [("answer", "reward_model")]


def row_check(config: Config) -> RowCheck:
    """The check that the ground truth of a row can be read."""
    return formula_truth
