"""Measurements of reward functions: they are added up over the completions, and change no reward."""

from __future__ import annotations

from typing import Any

import pytest

from purerl.evaluation.problem_results import Attempt, Problem, dataset_metrics
from purerl.evaluation.settings import Evaluate
from purerl.loop.metrics import reward_metrics
from purerl.rewards.adapters import RewardInput
from purerl.rewards.results import RewardResult
from purerl.rewards.runner import RewardRunner
from purerl.rollouts.episode_rows import results_of_episodes
from purerl.rollouts.types import Trajectory

from . import functions

HERE = "tests.rewards.functions"


def run(*names: str, is_local: bool = False) -> list[RewardResult]:
    """The results of the functions `names` of this package for two completions."""
    every = [f"{HERE}:{name}" for name in names]
    local = {f"{HERE}:{name}": getattr(functions, name) for name in names} if is_local else {}
    inputs = [RewardInput(str(k), "a" * k, {}) for k in (1, 2)]
    with RewardRunner(every, functions=local, timeout=30.0, num_workers=1) as runner:
        return runner.run(inputs)


@pytest.mark.parametrize("is_local", [True, False])
def test_numbers_that_functions_measure_are_totals_by_their_short_names(is_local: bool) -> None:
    results = run("measured", "measured_later", is_local=is_local)
    assert [result.components for result in results] == [{"measured": 1.0, "good": 1.0}] * 2
    expected = [{"measured/tokens": k, "measured_later/tokens": k, "measured_later/calls": 1.0} for k in (1.0, 2.0)]
    assert [result.totals for result in results] == expected


@pytest.mark.parametrize("is_local", [True, False])
def test_a_call_that_fails_may_have_totals_too(is_local: bool) -> None:
    for result in run("measured", "measured_and_failed", is_local=is_local):
        assert result.failure is not None
        assert result.failure.traceback.endswith("ValueError: no answer\n")
        assert result.totals["measured_and_failed/calls"] == 2.0


@pytest.mark.parametrize(
    ("name", "kind"), [("measured_wrongly", "returned an invalid value"), ("raises_with_other_totals", "raised")]
)
def test_totals_that_are_no_numbers_are_a_failure_or_ignored(name: str, kind: str) -> None:
    for result in run(name):
        assert result.failure is not None
        assert result.failure.kind == kind
        assert result.totals == {}


def _row(episode: int, row: int, **result: Any) -> Trajectory:
    return Trajectory({"episode": episode, "row": row}, result=RewardResult(**result))


def test_totals_are_added_up_over_rows_episodes_and_problems() -> None:
    spent, failed = {"judge/cost": 0.5}, {"judge/cost": 2.0}
    rows = [
        _row(0, 0, weighted_components={"judge": 0.0}),
        _row(0, 1, weighted_components={"judge": 1.0}, totals=spent),
        _row(1, 2, totals=failed),
        _row(1, 3, weighted_components={"judge": 1.0}, totals=spent),
    ]
    results = results_of_episodes(rows)
    assert reward_metrics(results)["reward/judge/cost"] == 3.0
    attempts = tuple(Attempt("", 1, "stop", None, result) for result in results)
    problems = [Problem(0, "", attempts), Problem(1, "", attempts[:1])]
    assert dataset_metrics(problems, Evaluate(every=1, max_tokens=1))["reward/judge/cost"] == 3.5
