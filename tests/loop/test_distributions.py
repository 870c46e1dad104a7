"""Spread of rewards, advantages and lengths: values by hand, edge cases, and the metrics of a run."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from attrs import evolve

from purerl.algos import dpo, ppo, sft
from purerl.batch import collate, with_fields
from purerl.loop.metrics import batch_metrics
from purerl.loop.metrics.distributions import advantage_metrics, critic_metrics, length_metrics, reward_spread
from purerl.loop.train import train
from purerl.testing import example_batch, fields_of, random_layout
from tests.loop.runs import records
from tests.loop.small import fake


def test_spread_of_rewards_is_over_all_completions_with_a_reward() -> None:
    spread = reward_spread([0.0, 1.0, 3.0, 3.0, None, 0.5], [0, 0, 7, 7, 7, 8])
    values = [0.0, 1.0, 3.0, 3.0, 0.5]
    mean = sum(values) / 5
    assert spread == {
        "reward/std": pytest.approx(math.sqrt(sum((v - mean) ** 2 for v in values) / 5)),
        "reward/min": 0.0,
        "reward/max": 3.0,
        "reward/zero_std_fraction": 0.5,  # the group with one reward is left out
    }


def test_equal_rewards_have_no_spread_whatever_their_rounding() -> None:
    spread = reward_spread([0.1] * 7, [0, 0, 0, 1, 1, 1, 1])
    assert spread == {"reward/std": 0, "reward/min": 0.1, "reward/max": 0.1, "reward/zero_std_fraction": 1.0}


def test_without_a_group_of_two_rewards_there_is_no_fraction_and_without_rewards_nothing() -> None:
    assert set(reward_spread([1.0, 2.0, None], [0, 1, 1])) == {"reward/std", "reward/min", "reward/max"}
    assert reward_spread([None, None], [0, 0]) == {}


def _batch() -> torch.Tensor:
    rows = [
        {"tokens": [5] * 6, "action": [False] * 2 + [True] * 4, "row": 0, "group": 0},
        {"tokens": [5] * 4, "action": [False, True, False, True], "row": 1, "group": 0},  # two turns
        {"tokens": [5] * 3, "action": [False] * 3, "row": 2, "group": 1},  # an empty completion
    ]
    return collate(rows)


def test_lengths_of_prompts_and_completions() -> None:
    metrics = {name: float(value) for name, value in length_metrics(_batch()).items()}
    assert metrics == {
        "rollout/length": 2.0,
        "rollout/length_min": 0.0,
        "rollout/length_max": 4.0,
        "rollout/prompt_length": 2.0,
        "rollout/prompt_length_min": 1.0,
        "rollout/prompt_length_max": 3.0,
    }


def test_advantages_are_those_of_counted_tokens() -> None:
    batch = _batch()
    mask = batch["mask"].clone()
    mask[0, 5] = False
    advantage = torch.full(mask.shape, 100.0)
    advantage[mask] = torch.tensor([1.0, 1.0, 1.0, -2.0, -1.0])
    batch = with_fields(batch, mask=mask, advantage=advantage)
    metrics = {name: float(value) for name, value in advantage_metrics(batch).items()}
    assert metrics == {
        "advantage/mean": 0.0,
        "advantage/std": pytest.approx(math.sqrt(8 / 5)),
        "advantage/min": -2.0,
        "advantage/max": 1.0,
    }
    assert advantage_metrics(with_fields(batch, mask=torch.zeros_like(mask))) == {}
    assert all(isinstance(value, float | int) for value in batch_metrics(batch).values())


@pytest.mark.parametrize("module", [sft, dpo])
def test_an_algorithm_without_advantages_has_no_metrics_of_them(module: object) -> None:
    fields = fields_of(module.algorithm())
    batch = example_batch(fields, random_layout(1, pairs="chosen" in fields))
    assert advantage_metrics(batch) == {}


def test_a_run_logs_spread_lengths_and_both_clip_fractions(tmp_path: Path) -> None:
    config = fake(ppo_epochs=4)
    config = evolve(config, trainer=evolve(config.trainer, lr=20.0))
    steps = records(train(config, directory=tmp_path / "run"))[1:]
    for record in steps:
        assert record["reward/min"] <= record["reward/mean"] <= record["reward/max"]
        assert record["advantage/min"] <= 0 <= record["advantage/max"]
        assert record["rollout/prompt_length_min"] == record["rollout/prompt_length_max"] == 6  # "27+58="
        assert record["rollout/length_min"] <= record["rollout/length"] <= record["rollout/length_max"] == 4
        low, high = record["policy/clip_fraction_low"], record["policy/clip_fraction_high"]
        assert low + high == pytest.approx(record["policy/clip_fraction"])
    assert any(record["policy/clip_fraction_low"] > 0 for record in steps)
    assert any(record["policy/clip_fraction_high"] > 0 for record in steps)


def _with_values(value: list[float], returns: list[float]) -> torch.Tensor:
    """A batch with these numbers at its counted tokens, and NaN elsewhere."""
    batch = _batch()
    fields = {"old_value": value, "returns": returns}
    numbers = {name: torch.full(batch["mask"].shape, math.nan, dtype=torch.float64) for name in fields}
    for name, values in fields.items():
        numbers[name][batch["mask"]] = torch.tensor(values, dtype=torch.float64)
    return with_fields(batch, **numbers)


@pytest.mark.parametrize(
    ("value", "returns", "expected"),
    [
        ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], 1.0),
        ([0.5] * 6, [0.0, 1.0, 0.0, 1.0, 0.0, 1.0], 0.0),
        ([0.25, 0.75] * 3, [0.0, 1.0] * 3, 0.75),
        ([1.0, 0.0] * 3, [0.0, 1.0] * 3, -3.0),
        ([1.0, 0.0] * 3, [0.5] * 6, 0.0),
    ],
)
def test_explained_variance_of_a_critic(value: list[float], returns: list[float], expected: float) -> None:
    metrics = critic_metrics(_with_values(value, returns))
    assert {name: float(x) for name, x in metrics.items()} == {"critic/explained_variance": pytest.approx(expected)}


def test_without_a_critic_or_counted_tokens_there_is_no_explained_variance() -> None:
    batch = _with_values([0.0] * 6, [1.0] * 6)
    assert critic_metrics(_batch()) == {}
    assert critic_metrics(with_fields(batch, mask=torch.zeros_like(batch["mask"]))) == {}


def test_a_run_with_a_critic_logs_its_explained_variance(tmp_path: Path) -> None:
    [_, first, *_] = records(train(fake(max_steps=1, algorithm=ppo.Config()), directory=tmp_path / "ppo").directory)
    assert first["critic/explained_variance"] <= 1
    [_, other, *_] = records(train(fake(max_steps=1), directory=tmp_path / "other").directory)
    assert "critic/explained_variance" not in other
