"""Names and values of components: nothing that a function returns can replace a metric, or is too large for float32."""

from __future__ import annotations

from typing import Any

import pytest

from purerl.errors import ConfigError, RewardError
from purerl.loop.metrics import reward_metrics
from purerl.rewards.adapters import RewardInput
from purerl.rewards.components import RESERVED_NAMES
from purerl.rewards.results import RewardResult
from purerl.rewards.runner import RewardRunner
from purerl.rewards.settings import Reward

INPUT = RewardInput("0/0", "abc", {"prompt": "p"})


def _result(value: Any, **options: Any) -> RewardResult:
    (result,) = _runner(lambda completion, example: value, **options).run([INPUT])
    return result


def _runner(*functions: Any, weight: float = 1.0) -> RewardRunner:
    named = {f"m:f{k}": function for k, function in enumerate(functions)}
    return RewardRunner([Reward(name, weight) for name in named], functions=named, timeout=5.0, num_workers=None)


@pytest.mark.parametrize("name", RESERVED_NAMES)
def test_component_with_the_name_of_a_metric_is_a_failure(name: str) -> None:
    result = _result({name: 1.0, "other": 1.0})
    assert result.failure.kind == "returned an invalid value"
    assert f"returned a component {name!r}; reward/{name} is another metric" in result.failure.traceback
    with pytest.raises(ConfigError, match=f"would have the metric reward/{name}\n"):
        RewardRunner([f"m:{name}"], functions={f"m:{name}": lambda c, e: 1.0}, timeout=5.0, num_workers=None)


def test_names_of_all_metrics_are_reserved() -> None:
    assert {name.removeprefix("reward/") for name in reward_metrics([RewardResult()])} <= {*RESERVED_NAMES}
    result = RewardResult({"c": 1.0}, {"c": 1.0})
    assert {name.removeprefix("reward/") for name in reward_metrics([result])} <= {*RESERVED_NAMES, "c"}


@pytest.mark.parametrize("name", ["", " a", "a ", "a/b", "a\nb", "\x1b[31m", "x" * 101, "a|b", "<b>", ("a", 1)])
def test_component_with_a_strange_name_is_a_failure(name: Any) -> None:
    result = _result({name: 1.0})
    assert result.failure.kind == "returned an invalid value"
    assert "need a name of at most 100 letters" in result.failure.traceback


@pytest.mark.parametrize("name", ["a", "format_ok", "größe", "v1.2", "module:f", "a b", "f1@10", "x" * 100, 3])
def test_component_with_an_ordinary_name_is_valid(name: Any) -> None:
    assert _result({name: 1.0}).components == {str(name): 1.0}


@pytest.mark.parametrize("value", [1e39, -1e39, 2.0**128, float("nan"), float("-inf"), {"a": 3.5e38}])
def test_value_that_float32_cannot_hold_is_a_failure(value: Any) -> None:
    result = _result(value)
    assert result.reward is None
    assert result.failure.kind == "returned an invalid value"
    assert "need a number that float32 can hold" in result.failure.traceback


def test_largest_value_is_valid_and_a_sum_above_it_is_a_failure() -> None:
    largest = (2 - 2**-23) * 2.0**127
    assert _result(largest).reward == largest
    assert _result({"a": largest, "b": -largest}).reward == 0.0
    assert "the weighted sum is 6.8" in _result({"a": largest, "b": largest}).failure.traceback
    assert "f0 is 3.4e+39, the weighted sum is 3.4e+39" in _result(3.4e38, weight=10.0).failure.traceback


def test_number_of_different_components_is_limited() -> None:
    runner = _runner(lambda completion, example: {f"row {completion}": 1.0})
    assert len(runner.run([RewardInput(str(k), str(k), {}) for k in range(100)])) == 100
    with pytest.raises(RewardError, match="got:  101: 'row 0', 'row 1', .*\n  need: at most 100 names"):
        runner.run([RewardInput("100", "100", {})])
