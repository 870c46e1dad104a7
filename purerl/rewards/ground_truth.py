"""The example's answer, against which completions are graded; one that is missing is an error, never a wrong answer."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Number
from typing import Any

__all__ = ["ground_truth"]


def ground_truth(example: Mapping[str, Any]) -> str:
    """The example's column `answer` as a text; where that is missing, null or NaN, `reward_model.ground_truth`.

    An integer that was read as a float, as in a table's column with a gap, is the integer. Raises KeyError where there
    is no answer, and TypeError where it is neither a text nor a number.

    >>> ground_truth({"answer": 2.0}), ground_truth({"answer": None, "reward_model": {"ground_truth": "72"}})
    ('2', '72')
    """
    found = example.get("answer")
    if _missing(found):
        found = (example.get("reward_model") or {}).get("ground_truth")
    if _missing(found):
        raise KeyError("the example has neither an 'answer' nor a 'ground_truth' in its 'reward_model'")
    if not isinstance(found, str | Number):
        raise TypeError(f"the example's answer is neither a text nor a number: {found!r:.200}")
    return str(int(found)) if isinstance(found, float) and found.is_integer() else str(found)


def _missing(value: object) -> bool:
    return value is None or (isinstance(value, Number) and value != value)
