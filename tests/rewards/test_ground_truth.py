"""The ground truth of an example: its columns, its conversion to a string, and the error if it is missing."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest

from purerl.rewards.exact import exact_match
from purerl.rewards.ground_truth import get_ground_truth


@pytest.mark.parametrize(
    ("example", "text"),
    [
        ({"answer": " 72 "}, " 72 "),
        ({"answer": ""}, ""),
        ({"answer": 72}, "72"),
        ({"answer": 72.0}, "72"),
        ({"answer": -0.5}, "-0.5"),
        ({"answer": Decimal("2.50")}, "2.50"),
        ({"answer": True}, "True"),
        ({"answer": "a", "reward_model": {"ground_truth": "b"}}, "a"),
        ({"answer": None, "reward_model": {"ground_truth": "b"}}, "b"),
        ({"answer": math.nan, "reward_model": {"ground_truth": 2.0}}, "2"),
        ({"reward_model": {"ground_truth": "b"}}, "b"),
    ],
)
def test_ground_truth_is_read_as_a_string(example: dict[str, Any], text: str) -> None:
    assert get_ground_truth(example) == text
    assert exact_match(f"\n{text} ", example) == 1.0
    assert exact_match(f"{text}x", example) == 0.0


@pytest.mark.parametrize(
    "example",
    [
        {},
        {"answer": None},
        {"answer": math.nan},
        {"answer": Decimal("NaN"), "reward_model": None},
        {"answer": None, "reward_model": {"ground_truth": None}},
        {"reward_model": {"style": "rule"}},
        {"answer": None, "reward_model": "rule"},
    ],
)
def test_missing_ground_truth_is_an_error(example: dict[str, Any]) -> None:
    for completion in ("None", "nan", ""):
        with pytest.raises(KeyError, match="neither an 'answer' nor"):
            exact_match(completion, example)


@pytest.mark.parametrize("answer", [["72"], {"a": 72}, b"72"])
def test_ground_truth_of_another_type_is_an_error(answer: Any) -> None:
    with pytest.raises(TypeError, match="neither a string nor a number: "):
        exact_match(str(answer), {"answer": answer})
