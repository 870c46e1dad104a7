"""Kinds that shape the length and the form of completions: cosine_length, repetition and finished."""

from __future__ import annotations

import math
from typing import Any

import pytest

from purerl.errors import ConfigError
from purerl.rewards.adapters import RewardInput
from purerl.rewards.check import check_rewards
from purerl.rewards.kinds import cosine_length, finished, repetition
from purerl.rewards.results import logged_metrics
from purerl.rewards.runner import RewardRunner
from purerl.rewards.settings import Reward, RewardWorkers, to_gates

EXACT = "purerl.rewards.exact:exact_match"


def _inputs(*lengths: int, completion: str = "72", **columns: Any) -> list[RewardInput]:
    example = {"answer": "72", **columns}
    return [RewardInput(str(k), completion, example, tokens=range(n)) for k, n in enumerate(lengths)]


def _rewards(config: Any, inputs: list[RewardInput]) -> list[float | None]:
    with RewardRunner([config], functions={}, timeout=60.0, num_workers=1) as runner:
        return [result.reward for result in runner.run(inputs)]


# --- cosine ------------------------------------------------------------------------------------------------------


def test_a_correct_completion_should_be_short_and_a_wrong_one_long() -> None:
    config = cosine_length.Config(correctness=EXACT, max_tokens=100)
    half = 0.5 + 0.5 * (1 + math.cos(math.pi / 4)) / 2
    assert _rewards(config, _inputs(0, 25, 50, 100, 200)) == pytest.approx([1.0, half, 0.75, 0.5, 0.5])
    wrong = [-1.0, -1.5 + half, -0.75, -0.5, -0.5]
    assert _rewards(config, _inputs(0, 25, 50, 100, 200, completion="7"))[2:] == pytest.approx(wrong[2:])
    assert _rewards(config, _inputs(0, completion="7")) == [-1.0]


def test_a_completion_that_is_too_long_may_have_a_reward_of_its_own() -> None:
    settings = {"correct_short": 2.0, "correct_long": 1.0, "wrong_short": -10.0, "wrong_long": 0.0, "exceeded": -10.0}
    config = cosine_length.Config(correctness=EXACT, max_tokens=10, **settings)
    assert _rewards(config, _inputs(0, 5, 10, 11)) == pytest.approx([2.0, 1.5, -10.0, -10.0])
    assert _rewards(config, _inputs(5, 10, completion="7")) == pytest.approx([-5.0, -10.0])


@pytest.mark.parametrize(
    "function",
    [
        "tests.rewards.functions:compute_score",
        "tests.rewards.functions:reward_answer",
        "tests.rewards.functions:exact_async",
    ],
)
def test_correctness_may_be_decided_by_a_function_of_any_convention(function: str) -> None:
    config = cosine_length.Config(correctness=function, max_tokens=10)
    columns = {"prompt": "p", "data_source": "x", "reward_model": {"ground_truth": "72"}, "extra_info": {"index": 0}}
    with RewardRunner([config], functions={}, timeout=60.0, num_workers=1) as runner:
        results = runner.run([*_inputs(0, **columns), *_inputs(0, completion="1", **columns)])
    assert [result.reward for result in results] == [1.0, -1.0]
    assert logged_metrics(results) == {"logged/correct": 0.5}


def test_a_completion_without_correctness_has_no_reward() -> None:
    config = cosine_length.Config(correctness="tests.rewards.functions:returns_none", max_tokens=10)
    assert _rewards(config, _inputs(1)) == [None]
    config = cosine_length.Config(correctness="tests.rewards.functions:raises_key_error", max_tokens=10)
    assert _rewards(config, _inputs(1)) == [None]


def test_columns_of_the_function_are_needed_and_a_missing_function_is_refused() -> None:
    runner = RewardRunner(
        [cosine_length.Config(correctness=EXACT, max_tokens=1)], functions={}, timeout=1.0, num_workers=1
    )
    with pytest.raises(ConfigError, match="need: also answer or reward_model\n"):
        runner.check_columns(["prompt"])
    missing = Reward(config=cosine_length.Config(correctness="nowhere:f", max_tokens=1))
    with pytest.raises(ConfigError, match="reward 'cosine_length': cannot find 'nowhere:f'\n"):
        check_rewards([missing], [], RewardWorkers(), {})


# --- repetition --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "size", "reward"),
    [
        ([1, 2, 3, 4], 2, 0.0),
        ([5, 5, 5, 5, 5], 2, -0.75),
        ([1, 2, 3, 1, 2, 3], 3, -0.25),
        ([1, 2], 3, 0.0),
        ([], 1, 0.0),
        ([7, 7, 8], 1, -1 / 3),
    ],
)
def test_the_penalty_is_the_share_of_repeated_ngrams(tokens: list[int], size: int, reward: float) -> None:
    item = RewardInput("0", "", {}, tokens=tokens)
    assert _rewards(repetition.Config(ngram_size=size), [item]) == pytest.approx([reward])
    assert _rewards(repetition.Config(ngram_size=size, penalty=2.0), [item]) == pytest.approx([2 * reward])


# --- finished ----------------------------------------------------------------------------------------------------


def test_a_truncated_completion_has_another_reward_or_none_behind_a_gate() -> None:
    inputs = [item._replace(truncated=item.row == "1") for item in _inputs(1, 2)]
    assert _rewards(finished.Config(), inputs) == [1.0, 0.0]
    assert _rewards(finished.Config(when_truncated=-0.5), inputs) == [1.0, -0.5]
    gates = to_gates([finished.Config()])
    with RewardRunner([EXACT], gates, functions={}, timeout=60.0, num_workers=1) as runner:
        assert [result.reward for result in runner.run(inputs)] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (finished.Config, {"when_truncated": 1.0}, "when_truncated\n  got:  1.0\n  need: another reward than that of"),
        (repetition.Config, {"ngram_size": 0}, "ngram_size\n  got:  0\n  need: an integer, at least 1\n"),
        (repetition.Config, {"penalty": -1.0}, "penalty\n  got:  -1.0\n  need: a finite number above 0\n"),
        (
            cosine_length.Config,
            {"correctness": EXACT, "max_tokens": 9, "correct_long": 1.0, "wrong_long": -1.0},
            "correct_long\n  got:  1.0\n  need: a reward that depends on the length",
        ),
    ],
)
def test_invalid_settings_are_refused(config: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**settings)
    assert str(caught.value).startswith(message)
