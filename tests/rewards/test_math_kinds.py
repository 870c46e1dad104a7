"""The kinds of rewards `math` and `numeric`, which have settings."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest

from purerl.config.schema import RunConfig
from purerl.config.structure import from_dict, to_dict
from purerl.errors import ConfigError
from purerl.recipes.addition import addition
from purerl.rewards.adapters import RewardInput
from purerl.rewards.answers import Rules
from purerl.rewards.kinds import math, numeric
from purerl.rewards.runner import RewardRunner
from purerl.rewards.settings import Reward


def test_tolerances_of_numeric() -> None:
    scores = {
        "The answer is 201": (0.0, 1.0, 1.0),
        "The answer is 202": (0.0, 0.0, 1.0),
        "The answer is 203.1": (0.0, 0.0, 0.0),
        "no idea": (0.0, 0.0, 0.0),
    }
    settings = ({}, {"relative_tolerance": 0.005}, {"absolute_tolerance": 3.0})
    rewards = [numeric.build(numeric.Config(**values)) for values in settings]
    example = {"answer": "200"}
    assert {text: tuple(reward(text, example) for reward in rewards) for text in scores} == scores
    assert numeric.build(numeric.Config(absolute_tolerance=0.01))("It is 0.001", {"answer": "0"}) == 1.0


def test_settings_of_math() -> None:
    near = math.build(math.Config(relative_tolerance=0.01))
    example = {"answer": r"\pi"}
    assert (near(r"\boxed{3.14}", example), near(r"\boxed{3.2}", example)) == (1.0, 0.0)
    sums = math.build(math.Config(evaluated=False))
    assert (sums(r"\boxed{1+1}", {"answer": "2"}), sums(r"\boxed{1+2}", {"answer": "2"})) == (1.0, 0.0)
    text = "The answer is 2."
    assert math.build(math.Config())(text, {"answer": "2"}) == 1.0
    assert math.build(math.Config(only_boxed=True))(text, {"answer": "2"}) == 0.0


@pytest.mark.parametrize("config", [numeric.Config, math.Config, Rules])
@pytest.mark.parametrize("name", ["relative_tolerance", "absolute_tolerance"])
@pytest.mark.parametrize("value", [-0.1, inf, nan])
def test_tolerance_that_is_negative_or_not_finite_is_refused(
    config: Callable[..., Any], name: str, value: float
) -> None:
    with pytest.raises(ConfigError, match=rf"(?s){name}.*need: +a finite number, at least 0"):
        config(**{name: value})


def test_kinds_run_in_workers_and_need_the_ground_truth() -> None:
    rewards = [{"kind": "math", "relative_tolerance": 0.01}, {"kind": "numeric", "weight": 0.5}]
    config = from_dict(RunConfig, {**to_dict(addition()), "rewards": rewards})
    inputs = [RewardInput(str(k), text, {"answer": "3.0"}) for k, text in enumerate((r"\boxed{3.01}", r"\boxed{3}"))]
    with RewardRunner(config.rewards, functions={}, timeout=30.0, num_workers=1) as runner:
        assert [result.components for result in runner.run(inputs)] == [
            {"math": 1.0, "numeric": 0.0},
            {"math": 1.0, "numeric": 1.0},
        ]
    assert math.columns(math.Config()) == numeric.columns(numeric.Config()) == [("answer", "reward_model")]
    assert isinstance(config.rewards[0], Reward)
