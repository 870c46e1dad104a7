"""Metrics of attempts at problems."""

from __future__ import annotations

import json

import pytest
from attrs import evolve

from purerl.evaluation.problem_results import Attempt, Problem, as_json, as_rows, dataset_metrics
from purerl.evaluation.settings import Evaluate
from purerl.rewards.results import RewardResult


def _problem(*attempts: tuple[float | None, str | None]) -> Problem:
    """A problem with the rewards and answers of its attempts. An attempt with a reward of at least 1 is correct."""
    return Problem(
        0, "", tuple(_attempt({} if reward is None else {"a": reward}, answer) for reward, answer in attempts)
    )


def _attempt(components: dict[str, float], answer: str | None = None) -> Attempt:
    is_correct = components["a"] >= 1 if "a" in components else None
    return Attempt("", 2, "stop", answer, RewardResult(components, components), is_correct)


def test_problems_have_equal_weight_and_attempts_without_reward_are_left_out() -> None:
    settings = Evaluate(max_tokens=4, samples_per_prompt=3, temperature=1.0, pass_at_k=(1, 3), answer_extractor="m:f")
    problems = [
        _problem((1.0, "x"), (0.5, "y"), (0.0, "y")),
        _problem((1.0, "x"), (None, "y"), (None, "y")),
        _problem((None, "x"), (None, "x"), (None, "x")),
    ]
    values = dataset_metrics(problems, settings)
    assert values["accuracy"] == values["pass@1"] == pytest.approx((1 / 3 + 1) / 2)
    assert values["reward"] == pytest.approx((0.5 + 1) / 2)
    assert values["pass@3"] == 1.0, "of the only problem with three scored completions"
    assert values["maj@3"] == 0.5
    assert values["valid_fraction"] == pytest.approx(4 / 9)
    assert values["length"] == 2


def test_components_are_means_over_problems_of_the_attempts_that_have_them() -> None:
    settings = Evaluate(max_tokens=4, samples_per_prompt=2, temperature=1.0)
    first = Problem(0, "", (_attempt({"a": 1.0, "b": 0.5}), _attempt({"a": 0.0})))
    second = Problem(1, "", (_attempt({"a": 1.0, "b": 0.25}), _attempt({"a": 1.0, "b": 0.75})))
    third = Problem(2, "", (_attempt({"a": 0.0}), _attempt({})))
    values = dataset_metrics([first, second, third], settings)
    assert values["reward/a"] == pytest.approx((0.5 + 1 + 0) / 3)
    assert values["reward/b"] == pytest.approx((0.5 + 0.5) / 2)
    assert values["reward"] == pytest.approx(((1.5 + 0) / 2 + (1.25 + 1.75) / 2 + 0) / 3)


def test_attempt_to_which_the_deciding_reward_does_not_apply_is_left_out_of_the_accuracy_only() -> None:
    settings = Evaluate(max_tokens=4, samples_per_prompt=2, temperature=1.0, pass_at_k=(1,))
    problems = [
        Problem(0, "", (_attempt({"a": 1.0, "b": 0.0}), _attempt({"b": 1.0}))),
        Problem(1, "", (_attempt({"b": 1.0}), _attempt({"b": 1.0}))),
    ]
    values = dataset_metrics(problems, settings)
    assert (values["accuracy"], values["pass@1"], values["reward/b"]) == (1.0, 1.0, 0.75)


def test_messages_are_a_column_only_if_an_attempt_has_several_turns() -> None:
    settings = Evaluate(max_tokens=4)
    single, messages = _attempt({"a": 1.0}), [{"role": "user", "content": "é"}]
    episode = evolve(single, messages=json.dumps(messages))
    [row] = as_rows({"d": [Problem(0, "", (single,))]})
    assert "messages" not in row
    rows = as_rows({"d": [Problem(0, "", (single,)), Problem(1, "", (episode,))]})
    assert [row["messages"] for row in rows] == [None, episode.messages]
    assert list(rows[1]).index("messages") < list(rows[1]).index("reward/a")
    attempts = as_json([Problem(0, "", (single, episode))], settings)["problems"][0]["attempts"]
    assert ["messages" in attempt for attempt in attempts] == [False, True]
    assert attempts[1]["messages"] == messages


def test_all_metrics_of_correctness_agree() -> None:
    settings = Evaluate(max_tokens=4, samples_per_prompt=2, temperature=1.0, pass_at_k=(1, 2), answer_extractor="m:f")
    problems = [Problem(0, "", (_attempt({"a": 1.0, "b": 0.0}, "x"), _attempt({"a": 3.0, "b": 0.0}, "x")))]
    values = dataset_metrics(problems, settings)
    assert [values[name] for name in ("accuracy", "pass@1", "pass@2", "maj@2")] == [1.0] * 4
