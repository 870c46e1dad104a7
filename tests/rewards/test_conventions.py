"""Arguments that only some libraries pass to reward functions: tokens, progress, logs, batches of verl, queries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
import pytest
import torch

from purerl.errors import ConfigError
from purerl.rewards.adapters import RewardInput, RunLength, needs_one_of
from purerl.rewards.loading import as_reward
from purerl.rewards.outcomes import Logged, call_reward
from purerl.rewards.results import logged_metrics
from purerl.rewards.runner import RewardRunner
from purerl.rewards.settings import Reward

MODULE = "tests.rewards.functions"
VERL = {"data_source": "gsm8k", "reward_model": {"ground_truth": "72"}, "extra_info": {"index": 5}}
RUN = RunLength(max_steps=100, steps_per_epoch=40.0)


def _outcomes(function: Callable[..., Any], *inputs: RewardInput, **kwargs: Any) -> list[Any]:
    return call_reward(as_reward("m:reward", function, kwargs), inputs, timeout=5.0, length=RUN)


def _inputs(*completions: str, **columns: Any) -> list[RewardInput]:
    example = {"prompt": "p", **columns}
    return [
        RewardInput(str(k), text, example, tokens=range(len(text) + 1), step=10 * k)
        for k, text in enumerate(completions)
    ]


# --- TRL ---------------------------------------------------------------------------------------------------------


def test_trl_function_gets_the_tokens_of_completions() -> None:
    """It may have no other parameter of TRL, as those in `trl.rewards` that `get_repetition_penalty_reward` makes."""

    def length(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        assert all(type(ids) is list for ids in completion_ids)
        return [float(len(ids)) for ids in completion_ids]

    assert as_reward("m:length", length).convention.name == "TRL"
    assert _outcomes(length, *_inputs("a", "bcd")) == [{"reward": 2.0}, {"reward": 4.0}]


def test_trl_function_gets_the_progress_of_the_run() -> None:
    states = []

    def reward(completions: Sequence[str], trainer_state: Any, **kwargs: Any) -> list[float]:
        states.append(trainer_state)
        return [trainer_state.global_step / trainer_state.max_steps] * len(completions)

    assert _outcomes(reward, *_inputs("a", "b")) == [{"reward": 0.1}] * 2
    [state] = states
    assert (state.global_step, state.max_steps, state.epoch, state.num_train_epochs) == (10, 100, 0.25, 2.5)


def test_progress_outside_of_a_run_is_0() -> None:
    def reward(completions: Sequence[str], trainer_state: Any) -> list[float]:
        return [trainer_state.max_steps + trainer_state.epoch] * len(completions)

    assert call_reward(as_reward("m:reward", reward), _inputs("a"), timeout=5.0) == [{"reward": 0.0}]


def _logs(completions: Sequence[str], log_metric: Any, log_extra: Any, **kwargs: Any) -> list[float | None]:
    log_metric("length", sum(map(len, completions)) / len(completions))
    log_metric("length", torch.tensor(8.0))
    log_metric("tools/ratio", numpy.float32(0.5))
    log_metric("not finite", float("nan"))
    log_metric("50%\n", 0.25)
    log_extra("upper", [text.upper() for text in completions])
    return [None if text == "none" else 1.0 for text in completions]


async def _logs_async(completions: Sequence[str], log_metric: Any, log_extra: Any, **kwargs: Any) -> list[float | None]:
    await asyncio.sleep(0)
    return _logs(completions, log_metric, log_extra)


@pytest.mark.parametrize("function", [_logs, _logs_async])
def test_what_a_trl_function_logs_is_kept(function: Callable[..., Any]) -> None:
    first, second = _outcomes(function, *_inputs("ab", "none"))
    metrics = {"length": (11.0, 2), "tools/ratio": (0.5, 1), "50__": (0.25, 1)}
    assert first == Logged({"reward": 1.0}, metrics, {"upper": "AB"})
    assert second == Logged({}, {}, {"upper": "NONE"})


def test_an_extra_column_needs_a_value_for_each_completion() -> None:
    def reward(completions: Sequence[str], log_extra: Any, **kwargs: Any) -> list[float]:
        log_extra("x", ["only one"])
        return [1.0] * len(completions)

    failure, _ = _outcomes(reward, *_inputs("a", "b"))
    assert failure.traceback.endswith("ValueError: log_extra('x', ...) got 1 values for 2 completions\n")


def test_logs_of_several_functions_are_in_the_result() -> None:
    def short(completion: str, example: Any, log_metric: Any) -> float:
        log_metric("length", len(completion))
        return 1.0

    functions = {"m:logs": _logs, "m:short": short}
    results = RewardRunner([*functions], functions=functions, timeout=5.0, num_workers=None).run(_inputs("ab", "none"))
    assert [result.reward for result in results] == [2.0, 1.0]
    assert results[0].metrics == {"length": (13.0, 3), "tools/ratio": (0.5, 1), "50__": (0.25, 1)}
    assert [result.columns for result in results] == [{"upper": "AB"}, {"upper": "NONE"}]
    means = logged_metrics(results)
    assert (means["logged/length"], means["logged/tools/ratio"]) == ((3 + 8 + 2 + 4) / 4, 0.5)


def test_logs_of_functions_in_workers_are_in_the_result() -> None:
    runner = RewardRunner([f"{MODULE}:logs_tokens"], functions={}, timeout=60.0, num_workers=1)
    runner.length = RUN
    with runner:
        first, second = runner.run(_inputs("a", "bc"))
    assert first.metrics == {"tokens": (2.5, 1)}
    assert (first.columns, second.columns) == ({"ids": "[0, 1]"}, {"ids": "[0, 1, 2]"})


def test_a_failed_completion_logs_nothing_and_a_masked_one_does() -> None:
    def reward(completion: str, example: Any, log_metric: Any) -> float | None:
        log_metric("called", 1)
        return None if completion == "none" else 1 / (completion != "bad")

    results = RewardRunner(["m:f"], functions={"m:f": reward}, timeout=5.0, num_workers=None).run(
        _inputs("bad", "none")
    )
    assert [(result.reward, result.metrics) for result in results] == [(None, {}), (None, {"called": (1.0, 1)})]


def test_names_of_metrics_are_limited() -> None:
    def reward(completion: str, example: Any, log_metric: Any) -> float:
        for k in range(150):
            log_metric(f"{completion}{k}", k)
        return 1.0

    runner = RewardRunner(["m:f"], functions={"m:f": reward}, timeout=5.0, num_workers=None)
    first, second = runner.run(_inputs("a", "b"))
    assert (len(first.metrics), len(second.metrics)) == (100, 0)


# --- purerl ------------------------------------------------------------------------------------------------------


def test_purerl_function_gets_what_its_parameters_name() -> None:
    def reward(completion: str, example: Any, *, tokens: Any, truncated: bool, messages: Any) -> float:
        return len(tokens) + 10 * truncated + 100 * len(messages)

    cut = RewardInput("0", "ab", {}, tokens=(1, 2, 3), truncated=True)
    assert _outcomes(reward, cut) == [{"reward": 113.0}]


@pytest.mark.parametrize("name", ["tokens", "truncated", "log_metric"])
def test_such_a_parameter_does_not_take_the_place_of_the_example(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"got:  a function \(completion, {name}\)"):
        as_reward("m:f", eval(f"lambda completion, {name}: 1.0"))


# --- verl --------------------------------------------------------------------------------------------------------


def test_a_function_of_the_batch_manager_gets_lists() -> None:
    seen = []

    def batched(data_sources: Any, solution_strs: Any, ground_truths: Any, extra_infos: Any) -> list[Any]:
        seen.append((data_sources, solution_strs, ground_truths, extra_infos))
        return [{"score": len(text), "odd": len(text) % 2} for text in solution_strs]

    first, second = _outcomes(batched, *_inputs("a", "bc", **VERL))
    extra = {"index": 5, "num_turns": 2, "rollout_reward_scores": {}}
    assert seen == [(["gsm8k"] * 2, ["a", "bc"], ["72"] * 2, [extra] * 2)]
    assert (first.outcome, first.metrics) == ({"reward": 1.0}, {"odd": (1.0, 1)})
    assert (second.outcome, second.columns) == ({"reward": 2.0}, {"odd": "0"})


def test_a_function_of_the_batch_manager_may_return_an_array() -> None:
    def batched(solution_strs: Any, **kwargs: Any) -> Any:
        return numpy.array([len(text) for text in solution_strs])

    assert _outcomes(batched, *_inputs("a", "bc", **VERL)) == [{"reward": 1.0}, {"reward": 2.0}]


def test_the_number_of_turns_is_that_of_verl() -> None:
    def turns(solution_str: str, extra_info: Mapping[str, Any], **kwargs: Any) -> float:
        return extra_info["num_turns"]

    roles = ("assistant", "tool", "tool", "assistant")
    episode = RewardInput("0", "x", VERL, messages=[{"role": role, "content": ""} for role in roles])
    assert _outcomes(turns, episode) == [{"reward": 4.0}]
    assert VERL["extra_info"] == {"index": 5}, "the row is unchanged"


def test_columns_of_verl_functions_are_required() -> None:
    def batched(data_sources: Any, solution_strs: Any, ground_truths: Any, extra_infos: Any) -> list[float]:
        return []

    runner = RewardRunner(["m:f"], functions={"m:f": batched}, timeout=5.0, num_workers=None)
    with pytest.raises(ConfigError, match="need: also data_source, reward_model\n"):
        runner.check_columns(["prompt"])


# --- OpenRLHF ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "returned",
    [
        {"rewards": torch.tensor([0.5]), "scores": torch.tensor([1.0]), "extra_logs": {"length": torch.tensor([3])}},
        {"rewards": 0.5, "scores": 1, "extra_logs": {"length": 3}},
        {"rewards": [0.5], "scores": [1.0], "extra_logs": {"length": [3]}},
        torch.tensor([0.5]),
        [0.5],
    ],
)
def test_a_function_of_openrlhf_gets_the_query_and_returns_rewards(returned: Any) -> None:
    seen = []

    def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> Any:
        seen.append((queries, prompts, labels))
        return returned

    item = RewardInput("0", "72", {"label": "72"}, prompt="<s>9*8=", query="<s>9*8=72</s>")
    (outcome,) = _outcomes(reward_func, item, item._replace(query=None, example={"answer": "x"}))[:1]
    assert seen[0] == (["<s>9*8=72</s>"], ["<s>9*8="], ["72"])
    assert seen[1] == (["<s>9*8=72"], ["<s>9*8="], ["x"]), "without the text with special tokens"
    if isinstance(returned, dict):
        assert (outcome.outcome, outcome.metrics) == ({"reward": 0.5}, {"scores": (1.0, 1), "length": (3.0, 1)})
    else:
        assert outcome == {"reward": 0.5}


def test_a_function_of_openrlhf_may_take_any_arguments() -> None:
    def reward_func(queries: list[str], prompts: list[str], labels: list[str], **kwargs: Any) -> dict[str, Any]:
        return {"rewards": torch.tensor(float(labels == [None]))}

    assert _outcomes(reward_func, RewardInput("0", "72", {})) == [{"reward": 1.0}]


def test_a_mapping_without_rewards_is_a_failure() -> None:
    def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict[str, Any]:
        return {"reward": 1.0}

    (failure,) = _outcomes(reward_func, RewardInput("0", "72", {}))
    assert failure.traceback == "returned a mapping with reward; need rewards"


# --- further arguments -------------------------------------------------------------------------------------------


def test_further_arguments_are_passed_in_each_call() -> None:
    rewards = [Reward(f"{MODULE}:scaled", kwargs={"factor": 3}), Reward(f"{MODULE}:scaled", name="other")]
    with RewardRunner(rewards, functions={}, timeout=60.0, num_workers=1) as runner:
        (result,) = runner.run(_inputs("ab"))
    assert result.components == {"scaled": 6.0, "other": 2.0}

    def batched(solution_strs: Any, bonus: float, **kwargs: Any) -> list[float]:
        return [bonus] * len(solution_strs)

    assert _outcomes(batched, *_inputs("a", **VERL), bonus=0.5) == [{"reward": 0.5}]


def test_columns_that_a_function_declares_are_known_with_further_arguments() -> None:
    @needs_one_of("answer")
    def reward(completion: str, example: Any, factor: float) -> float:
        return factor

    with_factor = Reward("m:f", kwargs={"factor": 2.0})
    runner = RewardRunner([with_factor], functions={"m:f": reward}, timeout=5.0, num_workers=None)
    with pytest.raises(ConfigError, match="need: also answer\n"):
        runner.check_columns(["prompt"])
    assert runner.run(_inputs("a"))[0].reward == 2.0


def test_arguments_that_a_function_does_not_have_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        as_reward("m:f", lambda completion, example: 1.0, {"factor": 2})
    assert str(caught.value) == (
        "kwargs of the reward 'm:f'\n  got:  a function (completion, example)\n"
        "  need: its arguments: got an unexpected keyword argument 'factor'"
    )
