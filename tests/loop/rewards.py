"""Reward functions of runs in tests, where a worker process has nothing else to import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def digits(completion: str, example: Mapping[str, Any]) -> float:
    """The share of right digits: something to learn from, for a model that knows nothing."""
    return sum(a == b for a, b in zip(completion, example["answer"], strict=False)) / 3


def first_is_even(completion: str, example: Mapping[str, Any]) -> float:
    """1 where the first digit is even: a gate."""
    return float(completion[:1] in set("02468"))
