"""Rewards for answers that are equal to the ground truth as texts."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Any

from purerl.rewards.adapters import needs_one_of
from purerl.rewards.ground_truth import get_ground_truth

__all__ = ["answers_question", "exact_match"]

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@needs_one_of("answer", "reward_model")
def exact_match(completion: str, example: Mapping[str, Any]) -> float:
    """1 if `completion` equals the ground truth, ignoring leading and trailing whitespace; 0 otherwise.

    >>> exact_match(" 42 ", {"answer": "42"})
    1.0
    """
    return float(completion.strip() == get_ground_truth(example).strip())


@needs_one_of("answer", "reward_model")
def answers_question(completion: str, example: Mapping[str, Any]) -> float:
    """1 if the last ``<answer>...</answer>`` is one of the accepted answers; 0 otherwise, and if there is none.

    Texts are compared without case, punctuation, articles and repeated spaces, as in the evaluation of SQuAD
    (Rajpurkar et al. 2016, 1606.05250). The ground truth is a string, a list of accepted strings, or, as in the files
    of Search-R1, a mapping with one of them as `target`.

    Raises: KeyError if there is no ground truth. TypeError if it is none of these.

    >>> answers_question("<answer>The Eiffel tower.</answer>", {"answer": ["Eiffel Tower", "La tour Eiffel"]})
    1.0
    """
    accepted = {_normalized(answer) for answer in _accepted_answers(example)}
    found = _ANSWER.findall(completion)
    return float(bool(found) and _normalized(found[-1]) in accepted)


def _accepted_answers(example: Mapping[str, Any]) -> list[str]:
    value = example.get("answer")
    if value is None:
        value = (example.get("reward_model") or {}).get("ground_truth")
    value = value.get("target") if isinstance(value, Mapping) else value
    if isinstance(value, list | tuple) and value and all(isinstance(item, str) for item in value):
        return [*value]
    if value is not None and not isinstance(value, str):
        raise TypeError(f"the ground truth is neither a string nor a list of strings: {value!r:.200}")
    return [get_ground_truth({"answer": value})]


def _normalized(text: str) -> str:
    """`text` in lower case, without punctuation and articles, and with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())
