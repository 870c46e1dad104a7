"""Calling reward functions: components, what cannot be told, and what is no reward."""

from __future__ import annotations

import math
from typing import Any

import pytest

from purerl.errors import ConfigError, RewardError
from purerl.rewards.judge import judge, load_reward, name_of


def length(completion: str, example: Any) -> float:
    return len(completion)


def parts(completion: str, example: Any) -> dict[str, float]:
    return {"format": 0.5, "length": 1}


def unsure(completion: str, example: Any) -> None:
    return None


def broken(completion: str, example: Any) -> float:
    raise KeyError("answer")


def test_components_are_named_after_functions_and_add_up_by_name() -> None:
    assert judge([length, parts], "abc", {}) == {"length": 4.0, "format": 0.5}


def test_one_that_cannot_tell_leaves_the_row_without_reward() -> None:
    assert judge([length, unsure], "abc", {}) is None


def test_an_error_says_which_function_and_what_it_was_given() -> None:
    with pytest.raises(RewardError, match=r"broken' raised KeyError: 'answer'\n  got:  completion 'abc'") as caught:
        judge([broken], "abc", {})
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("value", ["1", [1.0], {"a": "b"}, {}, math.nan, 1j])
def test_what_is_no_reward(value: Any) -> None:
    with pytest.raises(RewardError, match="returned no reward"):
        judge([lambda completion, example: value], "", {})


def test_a_name_finds_its_function() -> None:
    assert load_reward(name_of(length)) is length


@pytest.mark.parametrize("name", ["nowhere:f", "purerl.rewards.exact:nothing", "purerl.errors:__name__"])
def test_a_name_that_finds_nothing(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        load_reward(name)
