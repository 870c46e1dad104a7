"""Metrics of attempts at problems."""

from __future__ import annotations

import pytest

from purerl.evaluation.results import Attempt, Problem, dataset_metrics
from purerl.evaluation.settings import Evaluate
from purerl.rewards.runner import RewardResult


def _problem(*attempts: tuple[float | None, str | None]) -> Problem:
    """A problem with the rewards and answers of its attempts."""
    results = [
        RewardResult() if reward is None else RewardResult({"a": reward}, {"a": reward}) for reward, _ in attempts
    ]
    pairs = zip(attempts, results, strict=True)
    return Problem(0, "", tuple(Attempt("", 2, "stop", answer, result) for (_, answer), result in pairs))


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
