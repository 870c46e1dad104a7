"""Metrics of the rewards of a step."""

from __future__ import annotations

from purerl.loop.metrics import reward_metrics
from purerl.rewards.outcomes import Failure
from purerl.rewards.results import RewardResult


def test_component_is_averaged_over_the_rows_that_have_it() -> None:
    results = [
        RewardResult({"correct": 1.0, "style": 0.5}, {"correct": 1.0, "style": 0.5}),
        RewardResult({"correct": 0.0}, {"correct": 0.0}),
        RewardResult({}, {}),
        RewardResult(failure=Failure("m:style", "raised", "")),
    ]
    assert reward_metrics(results) == {
        "reward/mean": 0.75,
        "reward/correct": 0.5,
        "reward/style": 0.5,
        "reward/valid_fraction": 0.5,
        "reward/failed": 0.25,
        "reward/timed_out": 0.0,
    }


def test_no_means_without_any_reward() -> None:
    assert reward_metrics([RewardResult()]) == {
        "reward/valid_fraction": 0.0,
        "reward/failed": 0.0,
        "reward/timed_out": 0.0,
    }
