"""Calls of reward functions in the conventions of purerl, verl and TRL, and the functions that are refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

from purerl.errors import ConfigError
from purerl.rewards.adapters import RewardInput
from purerl.rewards.loading import as_reward, is_async, load_reward, name_of, required_columns
from purerl.rewards.outcomes import Failure, call_reward

from . import functions

MODULE = "tests.rewards.functions"
VERL = {"data_source": "gsm8k", "prompt": [], "reward_model": {"style": "rule", "ground_truth": "72"}}


def _outcomes(function: Any, *inputs: RewardInput) -> list[Any]:
    return call_reward(as_reward(name_of(function), function), inputs, timeout=5.0)


def test_purerl_function_gets_completion_and_example() -> None:
    outcomes = _outcomes(functions.raises_key_error, RewardInput("0", "a", {"scores": {"a": 2}}))
    assert outcomes == [{"raises_key_error": 2.0}]


def test_verl_function_gets_its_columns_and_entries_beside_the_score_are_logged() -> None:
    inputs = [RewardInput(str(k), text, VERL | {"extra_info": {"index": k}}) for k, text in enumerate(("72", "7"))]
    first, second = _outcomes(functions.compute_score, *inputs)
    assert (first.outcome, second.outcome) == ({"compute_score": 1.0}, {"compute_score": 0.0})
    assert first.metrics == {"acc": (1.0, 1), "index": (0.0, 1)}
    assert second.metrics == {"acc": (1.0, 1), "index": (1.0, 1)}
    assert second.columns == {"pred": "7", "acc": "True", "index": "1"}


def test_extra_info_is_optional_in_verl_functions_and_in_examples() -> None:
    def without_extra_info(data_source: str, solution_str: str, ground_truth: str) -> float:
        return float((data_source, solution_str, ground_truth) == ("gsm8k", "72", "72"))

    def with_extra_info(data_source: str, solution_str: str, ground_truth: str, extra_info: Any) -> float:
        return float(extra_info == {"num_turns": 2, "rollout_reward_scores": {}})

    assert _outcomes(without_extra_info, RewardInput("0", "72", VERL)) == [{"without_extra_info": 1.0}]
    assert _outcomes(with_extra_info, RewardInput("0", "72", VERL)) == [{"with_extra_info": 1.0}]


def test_trl_function_gets_all_rows_in_one_call_and_columns_as_lists() -> None:
    calls: list[Any] = []

    def record_call(prompts: Any, completions: Any, **columns: Any) -> list[float]:
        calls.append((prompts, completions, columns))
        return [1.0] * len(prompts)

    inputs = [RewardInput(str(k), f"c{k}", {"prompt": f"p{k}", "completion": "unused", "level": k}) for k in range(3)]
    assert _outcomes(record_call, *inputs) == [{"record_call": 1.0}] * 3
    [(prompts, completions, columns)] = calls
    assert (prompts, completions, columns["level"]) == (["p0", "p1", "p2"], ["c0", "c1", "c2"], [0, 1, 2])
    assert {*columns} == {"level", "completion_ids", "trainer_state", "log_metric", "log_extra"}


def test_none_of_a_trl_function_adds_no_component() -> None:
    answers = ("72", None, "1")
    inputs = [RewardInput(str(k), "72", {"prompt": "p", "answer": answer}) for k, answer in enumerate(answers)]
    assert _outcomes(functions.reward_answer, *inputs) == [{"reward_answer": 1.0}, {}, {"reward_answer": 0.0}]


def test_trl_function_without_kwargs_gets_only_its_columns() -> None:
    def named(completions: Any, level: Any) -> list[float]:
        return [float(k) for k in level]

    assert _outcomes(named, RewardInput("0", "c", {"prompt": "p", "level": 3, "other": 1})) == [{"named": 3.0}]


def test_trl_function_gets_messages_if_the_prompt_is_a_conversation() -> None:
    chat = {"prompt": [{"role": "user", "content": "hello"}]}
    assert _outcomes(functions.reward_chat, RewardInput("0", "abc", chat)) == [{"reward_chat": 3.0}]


@pytest.mark.parametrize("returned", [[1.0], 1.0, "ab", None])
def test_trl_function_must_return_one_value_per_row(returned: Any) -> None:
    def short(completions: Any, **columns: Any) -> Any:
        return returned

    first, second = _outcomes(short, *(RewardInput(str(k), "c", {"prompt": "p"}) for k in range(2)))
    assert first == second
    assert first.traceback.endswith(f"returned {returned!r}; need a list of 2, numbers or None")


def test_only_invalid_values_of_a_trl_list_fail() -> None:
    def mixed(completions: Any, **columns: Any) -> Any:
        return numpy.array([1.0, float("nan")])

    first, second = _outcomes(mixed, *(RewardInput(str(k), "c", {"prompt": "p"}) for k in range(2)))
    assert first == {"mixed": 1.0}
    assert second.kind == "returned an invalid value"


def test_required_columns_are_detected_from_the_parameters() -> None:
    assert required_columns(load_reward(f"{MODULE}:length")) == ()
    assert required_columns(load_reward(f"{MODULE}:compute_score")) == ("data_source", "reward_model")
    assert required_columns(load_reward(f"{MODULE}:reward_answer")) == ("prompt", "answer")


def test_async_functions_and_objects_are_detected() -> None:
    class AsyncCallable:
        async def __call__(self, completion: str, example: Any) -> float:
            return 1.0

    assert is_async(functions.awaits_sleep)
    assert is_async(AsyncCallable())
    assert not is_async(functions.length)
    assert _outcomes(AsyncCallable().__call__, RewardInput("0", "", {})) == [{"__call__": 1.0}]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere:f", "cannot find 'nowhere:f'\n  got:  No module named 'nowhere'"),
        (f"{MODULE}:nothing", f"cannot find '{MODULE}:nothing'\n  got:  module {MODULE} without nothing"),
        ("purerl.errors:__name__", "reward 'purerl.errors:__name__'\n  got:  str\n  need: a function"),
        ("no-such.py:f", "file 'no-such.py'\n  got:  no such file\n  need: a Python file"),
        (
            "__main__:f",
            "reward '__main__:f'\n  got:  a function in __main__, which is another module in a worker process\n",
        ),
        (
            "operator:setitem",
            "reward 'operator:setitem'\n  got:  a function (a, b, c)\n  need: one of: (data_source, solution_str, ",
        ),
    ],
)
def test_invalid_reward_name_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_reward(name)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", ["ground_truth", "answer", "label"])
def test_function_with_ground_truth_as_second_parameter_is_refused(name: str) -> None:
    function = eval(f"lambda completion, {name}: 0.0")
    with pytest.raises(ConfigError) as caught:
        as_reward("m:f", function)
    assert str(caught.value) == (
        f"reward 'm:f'\n  got:  a function (completion, {name})\n"
        f"  need: (completion, example); `example` is the complete row of the data set\n  do:   read example['{name}']"
    )


def test_verl_function_with_unknown_parameter_is_refused() -> None:
    def with_router(data_source: str, solution_str: str, ground_truth: str, extra_info: Any, router: Any) -> float:
        return 0.0

    with pytest.raises(ConfigError, match="got:  a function .*router"):
        as_reward("with_router", with_router)


def test_function_is_loaded_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_constant.py").write_text("def constant(completion, example):\n    return 1\n")
    (tmp_path / "my_broken.py").write_text("1 / 0\n")
    (tmp_path / "time.py").write_text("")
    assert load_reward(f"{tmp_path}/my_constant.py:constant").function("", {}) == 1
    with pytest.raises(
        ConfigError, match=r"my_broken.py:constant' cannot be imported\n  got:  ZeroDivisionError: division"
    ):
        load_reward(f"{tmp_path}/my_broken.py:constant")
    with pytest.raises(ConfigError, match=r"time.py'\n  got:  another module with the name 'time'\n  do:   rename the"):
        load_reward(f"{tmp_path}/time.py:constant")


def test_traceback_starts_in_the_reward_function() -> None:
    (failure,) = _outcomes(functions.raises_key_error, RewardInput("0", "a", {"scores": {}}))
    assert isinstance(failure, Failure)
    assert (failure.function, failure.kind) == (f"{MODULE}:raises_key_error", "raised")
    lines = failure.traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].endswith("in raises_key_error")
    assert lines[-1] == "KeyError: 'a'"


CONVERSATION = (
    {"role": "assistant", "content": "", "tool_calls": [{"name": "add", "arguments": {"a": 1}, "id": "0"}]},
    {"role": "tool", "content": "2"},
    {"role": "assistant", "content": "It is 2."},
)


def test_function_with_a_parameter_messages_gets_the_conversation() -> None:
    def calls(completion: str, example: Any, messages: Any) -> float:
        return sum(len(message.get("tool_calls", ())) for message in messages) + len(completion) / 100

    assert as_reward("calls", calls).convention.name == "purerl"
    assert _outcomes(calls, RewardInput("0", "It is 2.", {}, 0, CONVERSATION)) == [{"calls": 1.08}]
    assert _outcomes(calls, RewardInput("0", "12", {})) == [{"calls": 0.02}]


def test_parameter_messages_does_not_take_the_place_of_the_example() -> None:
    with pytest.raises(ConfigError, match=r"got:  a function \(completion, messages\)"):
        as_reward("reward", lambda completion, messages: 1.0)


def test_trl_function_gets_the_messages_of_an_episode() -> None:
    def called(prompts: Any, completions: Any, **columns: Any) -> list[float]:
        return [float(len(completion)) for completion in completions]

    chat = {"prompt": [{"role": "user", "content": "1+1"}]}
    inputs = [RewardInput("0", "It is 2.", chat, 0, CONVERSATION), RewardInput("1", "2", chat)]
    assert _outcomes(called, *inputs) == [{"called": 3.0}, {"called": 1.0}]
    text = RewardInput("0", "It is 2.", {"prompt": "1+1"}, 0, CONVERSATION)
    assert _outcomes(called, text) == [{"called": 8.0}], "a plain-text prompt has a completion that is text"
