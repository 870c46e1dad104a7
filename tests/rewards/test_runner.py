"""From what reward functions say to one verdict: components, weights, gates, and what is no reward."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import numpy
import pytest
import torch

from purerl.rewards.adapters import RewardInput, name_of
from purerl.rewards.outcomes import Failure
from purerl.rewards.runner import RewardResult, RewardRunner, combine

from . import functions

CASE = RewardInput("0/0", "abc", {"prompt": "p"})


def _judge(
    *rewards: Any, gates: Any = (), weights: dict[Any, float] | None = None, deadline: float = 5.0
) -> RewardRunner:
    given = {name_of(function): function for function in (*rewards, *gates)}
    named = {name_of(function): (weights or {}).get(function, 1.0) for function in rewards}
    return RewardRunner(named, [name_of(gate) for gate in gates], given=given, deadline=deadline, workers=None)


def test_components_are_named_after_functions_and_add_up_by_name() -> None:
    (found,) = _judge(functions.length, functions.parts)([CASE])
    assert found == RewardResult({"length": 4.0, "format": 0.5}, {"length": 4.0, "format": 0.5})
    assert found.reward == 4.5


def test_weights_are_of_functions_and_components_stay_as_they_were_said() -> None:
    (found,) = _judge(functions.length, functions.parts, weights={functions.length: 2.0, functions.parts: -1.0})([CASE])
    assert found.components == {"length": 4.0, "format": 0.5}
    assert found.counted == {"length": 5.0, "format": -0.5}
    assert found.reward == 4.5


def test_a_gate_lets_through_from_one_on_and_adds_nothing() -> None:
    def gate(completion: str, example: Any) -> float:
        return len(completion) - 1

    cases = [RewardInput(str(k), "x" * k, {}) for k in range(4)]
    found = _judge(functions.length, gates=[gate])(cases)
    assert [one.reward for one in found] == [0.0, 0.0, 2.0, 3.0]
    assert [one.components["gate"] for one in found] == [-1.0, 0.0, 1.0, 2.0]
    assert [one.counted for one in found][1:3] == [{"length": 0.0}, {"length": 2.0}]


def test_a_gate_that_is_also_a_reward_is_asked_once_and_adds_up() -> None:
    asked = []

    def both(completion: str, example: Any) -> float:
        asked.append(completion)
        return 1.0

    (found,) = _judge(both, functions.length, gates=[both])([CASE])
    assert asked == ["abc"]
    assert found.reward == 4.0


def test_one_that_cannot_tell_leaves_the_row_without_reward() -> None:
    (found,) = _judge(functions.length, functions.unsure)([CASE])
    assert found == RewardResult()
    assert found.reward is None


def test_one_that_is_not_about_the_row_leaves_it_to_the_others() -> None:
    said = {"m:a": {}, "m:b": {"b": 2.0}}
    assert combine(said, {"m:a": 1.0, "m:b": 1.0}, []).reward == 2.0
    assert combine({"m:a": {}}, {"m:a": 1.0}, []).reward is None
    assert combine(said, {"m:b": 1.0}, ["m:a"]).reward == 2.0


def test_a_failure_outweighs_all_and_is_the_first() -> None:
    one, other = Failure("m:a", "raised", "a"), Failure("m:b", "died", "b")
    assert combine({"m:c": None, "m:a": one, "m:b": other}, {}, []) == RewardResult(failure=one)


@pytest.mark.parametrize(
    "value", ["1", [1.0], {"a": "b"}, {"a": 1.0, "b": math.nan}, math.nan, math.inf, 1j, numpy.ones(2)]
)
def test_what_is_no_reward_fails(value: Any) -> None:
    (found,) = _judge(lambda completion, example: value)([CASE])
    assert found.reward is None
    assert found.failure.kind == "no reward"
    assert found.failure.traceback.startswith("returned ")
    assert found.failure.traceback.endswith("needed is a number, a mapping of names to numbers, or None")


class _Stop(BaseException):
    """As libraries with deadlines of their own raise it."""


def _stops(completion: str, example: Any) -> float:
    raise _Stop("late")


def test_what_no_library_should_raise_or_return_is_a_failure_all_the_same() -> None:
    (found,) = _judge(_stops)([CASE])
    assert found.failure.traceback.endswith("_Stop: late\n")
    (found,) = _judge(lambda completion, example: 10**400)([CASE])
    assert found.failure.kind == "no reward"


def test_trls_may_be_lazy_and_fail_late() -> None:
    def lazy(completions: list[str], **columns: Any) -> Any:
        return map(float, completions)

    cases = [RewardInput(str(k), text, {"prompt": "p"}) for k, text in enumerate(("1", "2"))]
    assert [one.reward for one in _judge(lazy)(cases)] == [1.0, 2.0]
    (found,) = _judge(lazy)([CASE])
    assert found.failure.kind == "raised"
    assert "could not convert string to float: 'abc'" in found.failure.traceback


def test_functions_of_one_name_are_told_apart() -> None:
    said = {"one:score": {"score": 0.5}, "two.py:score": {"score": 0.25}, "m:other": {"other": 1.0, "score": 9.0}}
    found = combine(said, {"one:score": 1.0, "two.py:score": 2.0}, ["m:other"])
    assert found.components == {"one:score": 0.5, "two.py:score": 0.25, "other": 1.0, "score": 9.0}
    assert found.counted == {"one:score": 0.5, "two.py:score": 0.5}


def test_an_empty_mapping_is_no_reward() -> None:
    (found,) = _judge(lambda completion, example: {})([CASE])
    assert "returned {}" in found.failure.traceback


def test_truth_values_and_numbers_of_numpy_and_torch_are_numbers() -> None:
    said = {"a": True, "b": numpy.float32(0.5), "c": numpy.int64(2), "d": torch.tensor(3.0)}
    (found,) = _judge(lambda completion, example: said)([CASE])
    assert found.components == {"a": 1.0, "b": 0.5, "c": 2.0, "d": 3.0}
    assert {type(value) for value in found.components.values()} == {float}


def test_leaving_the_interpreter_is_a_failure_like_others() -> None:
    (found,) = _judge(functions.leaves)([CASE])
    assert found.failure.traceback.splitlines()[-1] == "SystemExit: bye"


# --- awaiting, in this process -----------------------------------------------------------------------------------


def test_async_rewards_wait_together() -> None:
    begin = time.monotonic()
    found = _judge(functions.waits)([CASE] * 50)
    assert [one.reward for one in found] == [1.0] * 50
    assert time.monotonic() - begin < 5.0, "one after the other takes ten seconds"


def test_an_async_reward_has_a_deadline_and_the_place_where_it_waits_is_told() -> None:
    begin = time.monotonic()
    found = _judge(functions.waits, deadline=1.0)([CASE, RewardInput("1", "bad", {}), CASE])
    assert time.monotonic() - begin < 30.0, "it waits for a minute"
    assert [one.reward for one in found] == [1.0, None, 1.0]
    assert found[1].failure.kind == "timed out"
    assert "awaited for 1 seconds" in found[1].failure.traceback
    assert "await asyncio.sleep(60" in found[1].failure.traceback


def test_an_async_reward_that_raises_tells_where() -> None:
    one, other = _judge(functions.fails)([RewardInput("1", "bad", {}), CASE])
    assert one.failure.traceback.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert other.reward == 1.0


def test_async_rewards_may_be_asked_where_a_loop_runs_and_keep_theirs() -> None:
    loops = []

    async def mine(completion: str, example: Any) -> float:
        loops.append(asyncio.get_running_loop())
        return 1.0

    async def notebook() -> list[RewardResult]:
        return _judge(mine)([CASE])

    assert asyncio.run(notebook())[0].reward == 1.0
    assert _judge(mine)([CASE])[0].reward == 1.0
    assert loops[0] is loops[1]
