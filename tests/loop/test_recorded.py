"""Training on the recorded completions of another run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve

from purerl.algos import dapo, gdpo, grpo, rloo
from purerl.algos.modifiers import bypass, importance_weight
from purerl.backends.hf.tiny_models import word_tokenizer
from purerl.composition import Composition
from purerl.config.check import check
from purerl.config.plan import plan
from purerl.config.schema import RunConfig
from purerl.errors import ConfigError, RunDirectoryError
from purerl.loop.train import train
from purerl.settings import Model
from purerl.store.rollouts import read_batch, read_rollouts

from .runs import records, train_until, without_times
from .small import fake

CORRECTED = Composition(grpo.Config(), (importance_weight.Config(),))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps of GRPO."""
    folder = tmp_path_factory.mktemp("recorded")
    return train(fake(max_steps=3, evaluate=None), directory=folder / "run").directory


def _config(recorded: Path, **changes: Any) -> RunConfig:
    rollout = evolve(fake().rollout, recorded=str(recorded))
    settings = {"rollout": rollout, "algorithm": CORRECTED, "evaluate": None, "generator": None, "max_steps": 4}
    return fake(**settings | changes)


def test_rows_are_those_of_the_record_in_its_order(recorded: Path, tmp_path: Path) -> None:
    summary = train(_config(recorded), directory=tmp_path / "run")
    for step in range(1, 5):
        ours = read_batch(summary.directory / "rollouts", step)
        theirs = read_batch(recorded / "rollouts", (step - 1) % 3 + 1)
        for name in ("tokens", "action", "mask", "reward", "rollout_logp", "temperature", "truncated", "example"):
            assert torch.equal(ours[name], theirs[name]), name
        assert ours["group"].tolist() == [4 * (step - 1) + k // 4 for k in range(16)]
        assert len(ours["row"].unique()) == 16
    rows = read_rollouts(summary.directory / "rollouts", 4)
    before = read_rollouts(recorded / "rollouts", 1)
    for name in ("prompt", "completion", "finish", "ground_truth", "reward/digits"):
        assert [row[name] for row in rows] == [row[name] for row in before]


def test_policy_learns_and_the_weight_is_that_of_the_trained_policy(recorded: Path, tmp_path: Path) -> None:
    """The first step of both runs trains the same weights on the same rows; later steps are off policy."""
    summary = train(_config(recorded), directory=tmp_path / "run")
    metrics = records(summary)[1:]
    assert all(record["policy/grad_norm"] > 0 for record in metrics if record["reward/mean"] > 0)
    weights = [read_batch(summary.directory / "rollouts", step) for step in (1, 4)]
    ratios = [(batch["old_logp"] - batch["rollout_logp"])[batch["mask"]].abs().max() for batch in weights]
    assert ratios[0] < 1e-5 < ratios[1]
    assert not any("staleness" in name for record in metrics for name in record)


@pytest.mark.parametrize("rounds", [0, 1])
def test_run_with_the_settings_of_the_record_repeats_it(rounds: int, tmp_path: Path) -> None:
    """Its policy is always the one that sampled the rows, so all weights are 1. Groups that DAPO dropped stay out."""
    rollout = evolve(fake().rollout, max_resample_rounds=rounds)
    changes = {"rollout": rollout, "max_steps": 4, "evaluate": None, "batch_size": 8}
    recorded = train(fake(algorithm=dapo.Config(), **changes), directory=tmp_path / "recorded").directory
    assert any(record["rollout/kept_fraction"] < 1 for record in records(recorded)[1:])
    corrected = Composition(dapo.Config(), (importance_weight.Config(),))
    changes |= {"rollout": evolve(rollout, recorded=str(recorded))}
    summary = train(_config(recorded, algorithm=corrected, **changes), directory=tmp_path / "run")
    for ours, theirs in zip(records(summary)[1:], records(recorded)[1:], strict=True):
        for name in ("policy/loss/policy", "policy/grad_norm", "policy/entropy"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-6), name


def test_resumed_run_is_bit_exact(recorded: Path, tmp_path: Path) -> None:
    config = _config(recorded)
    whole = train(config, directory=tmp_path / "whole")
    train_until(3, config, directory=tmp_path / "resumed")
    resumed = train(config, directory=tmp_path / "resumed")
    assert without_times(records(resumed)) == without_times(records(whole))
    for step in range(1, 5):
        rows = [read_rollouts(run.directory / "rollouts", step) for run in (whole, resumed)]
        assert rows[0] == rows[1]


def test_evaluation_samples_from_the_trained_policy(recorded: Path, tmp_path: Path) -> None:
    evaluated = {"evaluate": fake().evaluate, "generator": fake().generator, "max_steps": 2}
    summary = train(_config(recorded, **evaluated), directory=tmp_path / "run")
    assert [("eval/accuracy" in record) for record in records(summary)] == [True, False, True]


@pytest.mark.parametrize("algorithm", [grpo.Config(), rloo.Config()])
def test_algorithm_without_a_correction_is_refused(algorithm: Any, recorded: Path) -> None:
    with pytest.raises(
        ConfigError, match="rollout.recorded\n  got:  .*\n  need: sampling: .* biased for rows of anothe"
    ):
        check(_config(recorded, algorithm=algorithm, num_minibatches=1))
    check(_config(recorded, algorithm=Composition(grpo.Config(), (bypass.Config(),))))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rewards": ("tests.loop.rewards:constant",)},
            "rewards\n  got:  tests.loop.rewards:constant\n  need: tests.lo",
        ),
        ({"rollout": {"temperature": 0.5}}, "rollout.temperature\n  got:  0.5\n  need: 1.0, as in the recorded run"),
        ({"rollout": {"samples_per_prompt": 8}}, "rollout.samples_per_prompt\n  got:  8\n  need: 4"),
        ({"rollout": {"max_staleness": 1}}, "max_staleness has no effect"),
        ({"generator": fake().generator}, "generator has no effect"),
        ({"max_steps": None, "num_epochs": 1.0}, "num_epochs\n  got:  1.0\n  need: max_steps"),
        ({"algorithm": Composition(gdpo.Config(), (importance_weight.Config(),))}, "cannot read components"),
    ],
)
def test_settings_that_contradict_the_record_are_refused(
    changes: dict[str, Any], message: str, recorded: Path, tmp_path: Path
) -> None:
    def start() -> None:
        rollout = evolve(_config(recorded).rollout, **changes.get("rollout", {}))
        train(_config(recorded, **{**changes, "rollout": rollout}), directory=tmp_path / "run")

    with pytest.raises(ConfigError, match=message):
        start()


def test_missing_and_changed_records_are_refused(recorded: Path, tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="got:  no config.toml"):
        train(_config(tmp_path / "none"), directory=tmp_path / "run")
    shutil.copytree(recorded, tmp_path / "copy")
    train_until(2, _config(tmp_path / "copy"), directory=tmp_path / "resumed")
    (tmp_path / "copy" / "rollouts" / "000003.parquet").unlink()
    with pytest.raises(RunDirectoryError, match="have changed since it started"):
        train(_config(tmp_path / "copy"), directory=tmp_path / "resumed")
    with pytest.raises(ConfigError, match="the directory of this run"):
        train(_config(tmp_path / "own"), directory=tmp_path / "own")


def test_model_with_another_tokenizer_is_refused(recorded: Path, tmp_path: Path) -> None:
    word_tokenizer("9876543210+=").save_pretrained(tmp_path / "model")
    with pytest.raises(ConfigError, match="the recorded run .* has another tokenizer"):
        train(_config(recorded, model=Model(str(tmp_path / "model"))), directory=tmp_path / "run")


def test_plan_names_the_record(recorded: Path) -> None:
    assert f"4 groups that {recorded} has recorded" in plan(_config(recorded))
