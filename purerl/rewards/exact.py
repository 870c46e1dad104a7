"""A reward for completions that are equal to the ground truth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from purerl.rewards.adapters import needs_one_of
from purerl.rewards.ground_truth import get_ground_truth

__all__ = ["exact_match"]


@needs_one_of("answer", "reward_model")
def exact_match(completion: str, example: Mapping[str, Any]) -> float:
    """1 if `completion` equals the ground truth, ignoring leading and trailing whitespace; 0 otherwise.

    >>> exact_match(" 42 ", {"answer": "42"})
    1.0
    """
    return float(completion.strip() == get_ground_truth(example).strip())
