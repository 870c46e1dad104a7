"""The completion is the answer, or it is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from purerl.rewards.adapters import needs_one_of
from purerl.rewards.ground_truth import ground_truth

__all__ = ["exact_match"]


@needs_one_of("answer", "reward_model")
def exact_match(completion: str, example: Mapping[str, Any]) -> float:
    """1 where `completion` is the example's answer, spaces around either aside; 0 where not.

    >>> exact_match(" 42 ", {"answer": "42"})
    1.0
    """
    return float(completion.strip() == ground_truth(example).strip())
