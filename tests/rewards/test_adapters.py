"""How reward functions are called: ours, verl's and TRL's, unchanged; and which functions are refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

from purerl.errors import ConfigError
from purerl.rewards.adapters import RewardInput, as_reward, columns_of, is_async, load_reward, name_of
from purerl.rewards.outcomes import Failure, call_reward

from . import functions

HERE = "tests.rewards.functions"
VERL = {"data_source": "gsm8k", "prompt": [], "reward_model": {"style": "rule", "ground_truth": "72"}}


def _outcomes(function: Any, *cases: RewardInput) -> list[Any]:
    return call_reward(as_reward(name_of(function), function), cases, deadline=5.0)


def test_ours_gets_the_completion_and_the_example() -> None:
    assert _outcomes(functions.raises, RewardInput("0", "a", {"scores": {"a": 2}})) == [{"raises": 2.0}]


def test_verls_gets_its_columns_and_of_what_it_returns_the_score_counts() -> None:
    cases = [RewardInput(str(k), text, VERL | {"extra_info": {"index": k}}) for k, text in enumerate(("72", "7"))]
    assert _outcomes(functions.compute_score, *cases) == [{"compute_score": 1.0}, {"compute_score": 0.0}]


def test_verls_without_extra_info_gets_none_and_an_example_without_it_an_empty_one() -> None:
    def three(data_source: str, solution_str: str, ground_truth: str) -> float:
        return float((data_source, solution_str, ground_truth) == ("gsm8k", "72", "72"))

    def four(data_source: str, solution_str: str, ground_truth: str, extra_info: Any) -> float:
        return float(extra_info == {})

    assert _outcomes(three, RewardInput("0", "72", VERL)) == [{"three": 1.0}]
    assert _outcomes(four, RewardInput("0", "72", VERL)) == [{"four": 1.0}]


def test_trls_gets_all_rows_at_once_and_columns_as_lists() -> None:
    seen: list[Any] = []

    def everything(prompts: Any, completions: Any, **columns: Any) -> list[float]:
        seen.append((prompts, completions, columns))
        return [1.0] * len(prompts)

    cases = [
        RewardInput(str(k), f"c{k}", {"prompt": f"p{k}", "completion": "never seen", "level": k}) for k in range(3)
    ]
    assert _outcomes(everything, *cases) == [{"everything": 1.0}] * 3
    assert seen == [(["p0", "p1", "p2"], ["c0", "c1", "c2"], {"level": [0, 1, 2]})]


def test_trls_none_says_that_the_function_is_not_about_the_row() -> None:
    cases = [RewardInput(str(k), "72", {"prompt": "p", "answer": gold}) for k, gold in enumerate(("72", None, "1"))]
    assert _outcomes(functions.reward_answer, *cases) == [{"reward_answer": 1.0}, {}, {"reward_answer": 0.0}]


def test_trls_takes_only_the_columns_it_names_where_it_does_not_take_all() -> None:
    def named(completions: Any, level: Any) -> list[float]:
        return [float(k) for k in level]

    assert _outcomes(named, RewardInput("0", "c", {"prompt": "p", "level": 3, "other": 1})) == [{"named": 3.0}]


def test_trls_gets_messages_where_the_prompt_is_a_conversation() -> None:
    chat = {"prompt": [{"role": "user", "content": "hello"}]}
    assert _outcomes(functions.reward_chat, RewardInput("0", "abc", chat)) == [{"reward_chat": 3.0}]


@pytest.mark.parametrize("returned", [[1.0], 1.0, "ab", None])
def test_trls_has_to_return_a_list_of_all(returned: Any) -> None:
    def short(completions: Any, **columns: Any) -> Any:
        return returned

    one, other = _outcomes(short, *(RewardInput(str(k), "c", {"prompt": "p"}) for k in range(2)))
    assert one == other
    assert one.traceback.endswith(f"returned {returned!r}; needed is a list of 2, numbers or None")


def test_of_trls_list_only_what_is_no_reward_fails() -> None:
    def mixed(completions: Any, **columns: Any) -> Any:
        return numpy.array([1.0, float("nan")])

    one, other = _outcomes(mixed, *(RewardInput(str(k), "c", {"prompt": "p"}) for k in range(2)))
    assert one == {"mixed": 1.0}
    assert other.kind == "no reward"


def test_what_examples_have_to_have_is_known_from_the_parameters() -> None:
    assert columns_of(load_reward(f"{HERE}:length")) == ()
    assert columns_of(load_reward(f"{HERE}:compute_score")) == ("data_source", "reward_model")
    assert columns_of(load_reward(f"{HERE}:reward_answer")) == ("prompt", "answer")


def test_async_is_known_of_functions_and_of_objects() -> None:
    class Asked:
        async def __call__(self, completion: str, example: Any) -> float:
            return 1.0

    assert is_async(functions.waits)
    assert is_async(Asked())
    assert not is_async(functions.length)
    assert _outcomes(Asked().__call__, RewardInput("0", "", {})) == [{"__call__": 1.0}]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere:f", "nothing is found at 'nowhere:f'\n  got:  No module named 'nowhere'"),
        (f"{HERE}:nothing", f"nothing is found at '{HERE}:nothing'\n  got:  module {HERE} without nothing"),
        ("purerl.errors:__name__", "reward 'purerl.errors:__name__'\n  got:  str\n  need: a function"),
        ("no-such.py:f", "file 'no-such.py'\n  got:  no such file\n  need: a Python file"),
        ("__main__:f", "reward '__main__:f'\n  got:  a name that means another module in every process\n  do:   give"),
        (
            "operator:setitem",
            "reward 'operator:setitem'\n  got:  a function (a, b, c)\n  need: one of: (data_source, solution_str, ",
        ),
    ],
)
def test_a_name_that_is_no_reward(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_reward(name)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", ["ground_truth", "answer", "label"])
def test_a_function_that_expects_the_right_answer_second_is_refused(name: str) -> None:
    given = eval(f"lambda completion, {name}: 0.0")
    with pytest.raises(ConfigError) as caught:
        as_reward("m:f", given)
    assert str(caught.value) == (
        f"reward 'm:f'\n  got:  a function (completion, {name})\n"
        f"  need: (completion, example), with the whole row as example\n  do:   read example['{name}']"
    )


def test_a_verl_function_that_wants_more_is_refused() -> None:
    def greedy(data_source: str, solution_str: str, ground_truth: str, extra_info: Any, router: Any) -> float:
        return 0.0

    with pytest.raises(ConfigError, match="got:  a function .*router"):
        as_reward("greedy", greedy)


def test_a_file_names_functions_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_rewards.py").write_text("def one(completion, example):\n    return 1\n")
    (tmp_path / "my_broken.py").write_text("1 / 0\n")
    (tmp_path / "time.py").write_text("")
    assert load_reward(f"{tmp_path}/my_rewards.py:one").function("", {}) == 1
    with pytest.raises(ConfigError, match=r"my_broken.py:one' cannot be imported\n  got:  ZeroDivisionError: division"):
        load_reward(f"{tmp_path}/my_broken.py:one")
    with pytest.raises(ConfigError, match=r"time.py'\n  got:  another module that is called 'time'\n  do:   give the"):
        load_reward(f"{tmp_path}/time.py:one")


def test_a_failure_begins_in_the_function() -> None:
    (failure,) = _outcomes(functions.raises, RewardInput("0", "a", {"scores": {}}))
    assert isinstance(failure, Failure)
    assert (failure.function, failure.kind) == (f"{HERE}:raises", "raised")
    lines = failure.traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].endswith("in raises")
    assert lines[-1] == "KeyError: 'a'"
