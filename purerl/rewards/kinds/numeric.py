r"""A reward for numbers with a tolerance: `purerl.rewards.math.numeric`.

The reward is 1 if the number in the completion equals the ground truth up to a tolerance, and 0 otherwise:

    |answer - ground truth| <= max(relative_tolerance |ground truth|, absolute_tolerance)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

from attrs import frozen

from purerl.rewards import math
from purerl.rewards.adapters import RowCheck
from purerl.rewards.answers import Rules
from purerl.rewards.truths import number_truth
from purerl.settings import setting

__all__ = ["TOLERANCE", "Config", "build", "columns", "row_check"]

TOLERANCE = {"need": "a finite number, at least 0", "valid": lambda value: 0 <= value < inf}


@frozen(kw_only=True)
class Config:
    """Settings of the kind `numeric`."""

    relative_tolerance: float = setting(
        "largest relative error of a number", default=math.NUMERIC.relative_tolerance, **TOLERANCE
    )
    absolute_tolerance: float = setting("largest absolute error of a number", default=0.0, **TOLERANCE)


def build(config: Config) -> Callable[..., float]:
    """The reward function with the settings `config`.

    >>> reward = build(Config(absolute_tolerance=0.5))
    >>> reward("The answer is 72.3.", {"answer": "72"}), reward("The answer is 73.", {"answer": "72"})
    (1.0, 0.0)
    """
    return partial(math.numeric, rules=Rules(config.relative_tolerance, config.absolute_tolerance))


def columns(config: Config) -> list[Any]:
    """The columns that the reward reads."""
    return [("answer", "reward_model")]


def row_check(config: Config) -> RowCheck:
    """The check that the ground truth of a row is a number."""
    return number_truth
