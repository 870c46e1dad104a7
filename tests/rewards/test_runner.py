"""Combination of reward functions: components, weights, gates, failures, and async functions in this process."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import numpy
import pytest
import torch

from purerl.rewards.adapters import RewardInput
from purerl.rewards.loading import name_of
from purerl.rewards.outcomes import Failure
from purerl.rewards.results import RewardResult, combine
from purerl.rewards.runner import RewardRunner
from purerl.rewards.settings import Gate, Reward

from . import functions

INPUT = RewardInput("0/0", "abc", {"prompt": "p"})


def _runner(
    *rewards: Any, gates: Any = (), weights: dict[Any, float] | None = None, timeout: float = 5.0
) -> RewardRunner:
    """A runner that calls all functions in this process."""
    functions = {name_of(function): function for function in (*rewards, *gates)}
    weighted = [Reward(name_of(function), (weights or {}).get(function, 1.0)) for function in rewards]
    gate_names = [name_of(gate) for gate in gates]
    return RewardRunner(weighted, gate_names, functions=functions, timeout=timeout, num_workers=None)


def test_components_are_named_after_functions_and_added_up_by_name() -> None:
    (result,) = _runner(functions.length, functions.two_components).run([INPUT])
    assert result == RewardResult({"length": 4.0, "format": 0.5}, {"length": 4.0, "format": 0.5})
    assert result.reward == 4.5


def test_weights_apply_to_functions_and_components_are_unweighted() -> None:
    weights = {functions.length: 2.0, functions.two_components: -1.0}
    (result,) = _runner(*weights, weights=weights).run([INPUT])
    assert result.components == {"length": 4.0, "format": 0.5}
    assert result.weighted_components == {"length": 5.0, "format": -0.5}
    assert result.reward == 4.5


def test_gate_passes_from_1_and_adds_nothing() -> None:
    def gate(completion: str, example: Any) -> float:
        return len(completion) - 1

    inputs = [RewardInput(str(k), "x" * k, {}) for k in range(4)]
    results = _runner(functions.length, gates=[gate]).run(inputs)
    assert [result.reward for result in results] == [0.0, 0.0, 2.0, 3.0]
    assert [result.components["gate"] for result in results] == [-1.0, 0.0, 1.0, 2.0]
    assert [result.weighted_components for result in results][1:3] == [{"length": 0.0}, {"length": 2.0}]


def test_gate_may_pass_from_another_value() -> None:
    inputs = [RewardInput(str(k), "x" * k, {}) for k in range(4)]
    gate = Gate(name_of(functions.length), at_least=1.5, name="long")
    runner = RewardRunner([name_of(functions.constant)], [gate], functions={}, timeout=5.0, num_workers=1)
    with runner:
        results = runner.run(inputs)
    assert [result.reward for result in results] == [0.0, 0.0, 1.0, 1.0]
    assert [result.components["long"] for result in results] == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("settings", "contributions"),
    [
        ({"mean": 1.0}, [-1.0, 0.0, 1.0, 2.0]),
        ({"std": 0.5}, [0.0, 2.0, 4.0, 6.0]),
        ({"clip": (0.5, 2.0)}, [0.5, 1.0, 2.0, 2.0]),
        ({"mean": 1.0, "std": 0.5, "clip": (-1.0, 3.0), "weight": -2.0}, [2.0, 0.0, -4.0, -6.0]),
    ],
)
def test_a_value_is_normalized_and_clipped_before_its_weight(settings: Any, contributions: list[float]) -> None:
    """weight * clip((value - mean) / std), while the component is the value."""
    outcomes = [{"m:f": {"f": float(k)}} for k in range(4)]
    results = [combine(outcome, {"m:f": Reward("m:f", **settings)}, {}) for outcome in outcomes]
    assert [result.reward for result in results] == contributions
    assert [result.components["f"] for result in results] == [0.0, 1.0, 2.0, 3.0]


def test_each_component_of_a_function_is_clipped() -> None:
    result = combine({"m:f": {"a": 5.0, "b": -5.0, "c": 0.5}}, {"m:f": Reward("m:f", clip=(-1.0, 2.0))}, {})
    assert result.weighted_components == {"a": 2.0, "b": -1.0, "c": 0.5}


def test_gate_that_is_also_a_reward_is_called_once_and_added() -> None:
    calls = []

    def gate(completion: str, example: Any) -> float:
        calls.append(completion)
        return 1.0

    (result,) = _runner(gate, functions.length, gates=[gate]).run([INPUT])
    assert calls == ["abc"]
    assert result.reward == 4.0


def test_none_gives_no_reward() -> None:
    (result,) = _runner(functions.length, functions.returns_none).run([INPUT])
    assert result == RewardResult()
    assert result.reward is None


def test_function_without_components_is_ignored() -> None:
    outcomes = {"m:a": {}, "m:b": {"b": 2.0}}
    a, b, gate = Reward("m:a"), Reward("m:b"), Gate("m:a")
    assert combine(outcomes, {"m:a": a, "m:b": b}, {}).reward == 2.0
    assert combine({"m:a": {}}, {"m:a": a}, {}).reward is None
    assert combine(outcomes, {"m:b": b}, {"m:a": gate}).reward == 2.0


def test_first_failure_is_reported_and_gives_no_reward() -> None:
    first, second = Failure("m:a", "raised", "a"), Failure("m:b", "died", "b")
    assert combine({"m:c": None, "m:a": first, "m:b": second}, {}, {}) == RewardResult(failure=first)


@pytest.mark.parametrize(
    "value", ["1", [1.0], {"a": "b"}, {"a": 1.0, "b": math.nan}, math.nan, math.inf, 1j, numpy.ones(2)]
)
def test_invalid_value_is_a_failure(value: Any) -> None:
    (result,) = _runner(lambda completion, example: value).run([INPUT])
    assert result.reward is None
    assert result.failure.kind == "returned an invalid value"
    assert result.failure.traceback.startswith("returned ")
    assert result.failure.traceback.endswith(", a mapping of names to such numbers, or None")


class _TimeLimitError(BaseException):
    """Not an Exception. Some libraries with time limits raise such errors."""


def _raises_base_exception(completion: str, example: Any) -> float:
    raise _TimeLimitError("late")


def test_base_exception_and_huge_integer_are_failures() -> None:
    (result,) = _runner(_raises_base_exception).run([INPUT])
    assert result.failure.traceback.endswith("_TimeLimitError: late\n")
    (result,) = _runner(lambda completion, example: 10**400).run([INPUT])
    assert result.failure.kind == "returned an invalid value"


def test_trl_function_may_return_an_iterator_that_fails_later() -> None:
    def lazy(completions: list[str], **columns: Any) -> Any:
        return map(float, completions)

    inputs = [RewardInput(str(k), text, {"prompt": "p"}) for k, text in enumerate(("1", "2"))]
    assert [result.reward for result in _runner(lazy).run(inputs)] == [1.0, 2.0]
    (result,) = _runner(lazy).run([INPUT])
    assert result.failure.kind == "raised"
    assert "could not convert string to float: 'abc'" in result.failure.traceback


def test_functions_with_equal_short_names_have_separate_components() -> None:
    outcomes = {"one:score": {"score": 0.5}, "two.py:score": {"score": 0.25}, "m:other": {"other": 1.0, "score": 9.0}}
    rewards = {"one:score": Reward("one:score"), "two.py:score": Reward("two.py:score", weight=2.0)}
    result = combine(outcomes, rewards, {"m:other": Gate("m:other")})
    assert result.components == {"one:score": 0.5, "two.py:score": 0.25, "other": 1.0, "score": 9.0}
    assert result.weighted_components == {"one:score": 0.5, "two.py:score": 0.5}


def test_empty_mapping_is_a_failure() -> None:
    (result,) = _runner(lambda completion, example: {}).run([INPUT])
    assert "returned {}" in result.failure.traceback


def test_booleans_and_scalars_of_numpy_and_torch_are_numbers() -> None:
    returned = {"a": True, "b": numpy.float32(0.5), "c": numpy.int64(2), "d": torch.tensor(3.0)}
    (result,) = _runner(lambda completion, example: returned).run([INPUT])
    assert result.components == {"a": 1.0, "b": 0.5, "c": 2.0, "d": 3.0}
    assert {type(value) for value in result.components.values()} == {float}


def test_system_exit_is_a_failure() -> None:
    (result,) = _runner(functions.raises_system_exit).run([INPUT])
    assert result.failure.traceback.splitlines()[-1] == "SystemExit: bye"


# --- async functions in this process -----------------------------------------------------------------------------


def test_async_functions_run_concurrently() -> None:
    start = time.monotonic()
    results = _runner(functions.awaits_sleep).run([INPUT] * 50)
    assert [result.reward for result in results] == [1.0] * 50
    assert time.monotonic() - start < 5.0, "sequential calls take ten seconds"


def test_async_function_times_out_with_the_stack_of_its_await() -> None:
    start = time.monotonic()
    results = _runner(functions.awaits_sleep, timeout=1.0).run([INPUT, RewardInput("1", "bad", {}), INPUT])
    assert time.monotonic() - start < 30.0, "the function sleeps for a minute"
    assert [result.reward for result in results] == [1.0, None, 1.0]
    assert results[1].failure.kind == "timed out"
    assert "did not finish within 1 seconds" in results[1].failure.traceback
    assert "await asyncio.sleep(60" in results[1].failure.traceback


def test_exception_of_an_async_function_is_reported() -> None:
    failed, scored = _runner(functions.raises_async).run([RewardInput("1", "bad", {}), INPUT])
    assert failed.failure.traceback.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert scored.reward == 1.0


def test_async_functions_share_one_event_loop_even_inside_a_running_loop() -> None:
    loops = []

    async def record_loop(completion: str, example: Any) -> float:
        loops.append(asyncio.get_running_loop())
        return 1.0

    async def notebook() -> list[RewardResult]:
        return _runner(record_loop).run([INPUT])

    assert asyncio.run(notebook())[0].reward == 1.0
    assert _runner(record_loop).run([INPUT])[0].reward == 1.0
    assert loops[0] is loops[1]
