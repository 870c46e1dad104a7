"""The ground truth of an example. A missing ground truth is an error, so it never gives the reward 0."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Number
from typing import Any

__all__ = ["find_ground_truth", "get_ground_truth"]


def get_ground_truth(example: Mapping[str, Any]) -> str:
    """Return the column `answer` as a string, or `reward_model.ground_truth` if `answer` is missing, null or NaN.

    A float with an integer value is returned as an integer, because tables store integer columns with missing values as
    floats.

    Raises: KeyError if there is no ground truth. TypeError if it is neither a string nor a number.

    >>> get_ground_truth({"answer": 2.0}), get_ground_truth({"answer": None, "reward_model": {"ground_truth": "72"}})
    ('2', '72')
    """
    value = example.get("answer")
    if _is_missing(value):
        reward_model = example.get("reward_model")
        value = reward_model.get("ground_truth") if isinstance(reward_model, Mapping) else None
    if _is_missing(value):
        raise KeyError("the example has neither an 'answer' nor a 'ground_truth' in its 'reward_model'")
    if not isinstance(value, str | Number):
        raise TypeError(f"the ground truth is neither a string nor a number: {value!r:.200}")
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def find_ground_truth(example: Mapping[str, Any]) -> str | None:
    """The ground truth of `example`, or None if `get_ground_truth` finds none that can be used."""
    try:
        return get_ground_truth(example)
    except (KeyError, TypeError):
        return None


def _is_missing(value: object) -> bool:
    return value is None or (isinstance(value, Number) and value != value)
