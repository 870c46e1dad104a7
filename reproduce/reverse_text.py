"""The reward of reversing a text: how similar the answer in its tags is to the reversed text."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import Any

from purerl.rewards.adapters import needs_one_of
from purerl.rewards.ground_truth import get_ground_truth


@needs_one_of("answer", "reward_model")
def reversed_text(completion: str, example: Mapping[str, Any]) -> float:
    """2 m / (a + b): m characters of the answer and of the ground truth match in order, of a and b characters.

    The answer is in the last ``<reversed_text>`` tag, and ends with its closing tag or with the completion. Without a
    tag the reward is 0. The matching blocks are those of `difflib.SequenceMatcher`.

    >>> reversed_text("<reversed_text>cba</reversed_text>", {"answer": "cba"})
    1.0
    >>> reversed_text("<reversed_text>cb</reversed_text>", {"answer": "cba"}), reversed_text("cba", {"answer": "cba"})
    (0.8, 0.0)
    """
    _, tag, rest = completion.rpartition("<reversed_text>")
    answer = rest.partition("</reversed_text>")[0].strip()
    return SequenceMatcher(None, answer, get_ground_truth(example)).ratio() if tag else 0.0
