"""The example's answer: where it stands, how it is read as a text, and that a missing one is an error."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest

from purerl.rewards.exact import exact_match
from purerl.rewards.ground_truth import ground_truth


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
def test_where_the_answer_stands_and_how_it_is_read(example: dict[str, Any], text: str) -> None:
    assert ground_truth(example) == text
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
    ],
)
def test_without_an_answer_there_is_no_reward(example: dict[str, Any]) -> None:
    for said in ("None", "nan", ""):
        with pytest.raises(KeyError, match="neither an 'answer' nor"):
            exact_match(said, example)


@pytest.mark.parametrize("answer", [["72"], {"a": 72}, b"72"])
def test_an_answer_is_a_text_or_a_number(answer: Any) -> None:
    with pytest.raises(TypeError, match="neither a text nor a number: "):
        exact_match(str(answer), {"answer": answer})
