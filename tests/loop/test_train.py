"""Whole runs with small engines: the files and metrics that they write."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
import torch
from attrs import evolve

import purerl
from purerl.algos import dapo, grpo, ppo, reinforce_plus_plus, spo
from purerl.algos.algebra import compute_advantages, fingerprint
from purerl.algos.modifiers import importance_weight, kl_reward, mask_truncated, rejection
from purerl.backends.fake import generator as fake_generator
from purerl.batch import STRUCTURE
from purerl.composition import Composition
from purerl.config.requirements import requirements_of
from purerl.config.schema import Role, StopWhen
from purerl.errors import ConfigError, InputError, RewardError
from purerl.loop.callbacks import Callbacks
from purerl.loop.train import train
from purerl.settings import Model
from purerl.store.rollouts import read_batch, read_metadata, read_rollouts
from tests.backends.saved import saved_tensors
from tests.data.made import write

from .rewards import digits
from .runs import records
from .small import fake, small, small_real


def test_rollouts_have_the_samples_and_what_was_computed_about_them(tmp_path: Path) -> None:
    summary = train(fake(2, evaluate=None), directory=tmp_path / "run")
    rows = read_rollouts(summary.directory / "rollouts", 2)
    assert len(rows) == 16
    assert set(Counter(row["group"] for row in rows).values()) == {4}
    problems = parquet.read_table(summary.directory / "prepared" / "train.parquet").to_pylist()
    for row in rows:
        sampled = [k for k, action in enumerate(row["action"]) if action]
        assert sampled == list(range(6, len(row["tokens"])))
        assert row["prompt"] == problems[row["example"]]["prompt"]
        assert {row["version"][k] for k in sampled} == {1}
        assert all(abs(row["rollout_logp"][k] - row["old_logp"][k]) < 1e-5 for k in sampled)
        answer = problems[row["example"]]["answer"]
        correct = sum(a == b for a, b in zip(row["completion"], answer, strict=False)) / 3
        assert sum(row["reward"]) == row["reward"][-1] == pytest.approx(correct)
    for group in {row["group"] for row in rows}:
        assert sum(row["advantage"][-1] for row in rows if row["group"] == group) == pytest.approx(0, abs=1e-5)


def test_advantages_can_be_computed_again_from_the_rollouts_of_a_step(tmp_path: Path) -> None:
    data = write(tmp_path / "rows.jsonl", [{"prompt": f"{k}+{k}=", "answer": f"{2 * k}00"} for k in range(4)])
    rollout = evolve(fake().rollout, samples_per_prompt=2)
    config = fake(algorithm=spo.Config(), data=data, rollout=rollout, evaluate=None)  # every step has the same prompts
    folder = train(config, directory=tmp_path / "run").directory / "rollouts"
    algorithm = requirements_of(config).algorithm
    for step in (1, 2, 3, 4):
        batch, metadata = read_batch(folder, step), read_metadata(folder, step)
        assert metadata.algorithm == fingerprint(algorithm)
        _, computed = compute_advantages(algorithm, metadata.state, batch.exclude("advantage"))
        assert torch.equal(computed["advantage"], batch["advantage"])
    _, computed = compute_advantages(algorithm, read_metadata(folder, 1).state, batch.exclude("advantage"))
    assert not torch.equal(computed["advantage"], batch["advantage"]), "the state changes from step to step"


def test_advantages_with_changed_rewards_and_rejected_rows_can_be_computed_again(tmp_path: Path) -> None:
    modifiers = (mask_truncated.Config(), rejection.Config(), kl_reward.Config(coef=0.5, target=0.01))
    config = fake(2, algorithm=Composition(reinforce_plus_plus.Config(), modifiers), evaluate=None)
    folder = train(config, directory=tmp_path / "run").directory / "rollouts"
    algorithm = requirements_of(config).algorithm
    for step in (1, 2):
        batch = read_batch(folder, step)
        inputs = batch.select(*STRUCTURE, *algorithm.reads)
        _, computed = compute_advantages(algorithm, read_metadata(folder, step).state, inputs)
        assert torch.equal(computed["advantage"], batch["advantage"])
    assert not torch.equal(computed["reward"], batch["reward"]), "the rewards of the file have no KL penalty"


@pytest.mark.parametrize("max_staleness", [1, 3])
def test_tokens_are_at_most_as_old_as_max_staleness(max_staleness: int, tmp_path: Path) -> None:
    algorithm = Composition(grpo.Config(), (importance_weight.Config(),))
    config = fake(max_steps=6, algorithm=algorithm, evaluate=None)
    rollout = evolve(config.rollout, max_staleness=max_staleness)
    summary = train(evolve(config, rollout=rollout), directory=tmp_path / "run")
    for step in range(1, 7):
        rows = read_rollouts(summary.directory / "rollouts", step)
        ages = [step - 1 - version for row in rows for version in row["version"][6:]]
        assert 0 <= min(ages) <= max(ages) <= min(max_staleness, step - 1)
        record = records(summary)[step]
        assert record["rollout/staleness"] == pytest.approx(sum(ages) / len(ages))
        assert record["rollout/staleness_max"] == max(ages)
    assert max(ages) == max_staleness
    assert records(summary)[4]["mismatch/logp_abs_diff"] > 1e-3


def test_single_optimizer_step_needs_no_scoring(tmp_path: Path) -> None:
    """At a learning rate of almost 0, one mini-batch without scoring has the same metrics as two with scoring."""
    frozen = evolve(fake().trainer, lr=1e-12)
    metrics, rows = {}, {}
    for num_minibatches in (1, 2):
        # In one directory, because the fake engine draws the weights of a model from its path.
        config = fake(2, trainer=frozen, num_minibatches=num_minibatches, evaluate=None)
        summary = train(config, directory=tmp_path / "run", fresh=True)
        metrics[num_minibatches] = records(summary)[1:]
        rows[num_minibatches] = read_rollouts(summary.directory / "rollouts", 1)
    for single, split in zip(metrics[1], metrics[2], strict=True):
        assert single["mismatch/logp_abs_diff"] == pytest.approx(split["mismatch/logp_abs_diff"], abs=1e-7)
        assert single["policy/entropy"] == pytest.approx(split["policy/entropy"])
        assert single["policy/approx_kl"] == 0
    assert "old_logp" in rows[2][0]
    assert "old_logp" not in rows[1][0]


def test_dynamic_sampling_replaces_groups_with_equal_rewards(tmp_path: Path) -> None:
    config = fake(algorithm=dapo.Config(), rollout=evolve(fake().rollout, max_resample_rounds=20), evaluate=None)
    summary = train(config, directory=tmp_path / "run")
    metrics = records(summary)[1:]
    assert max(record["rollout/sampled"] for record in metrics) > 16
    for record in metrics:
        assert record["rollout/kept_fraction"] == 16 / record["rollout/sampled"]
        rows = read_rollouts(summary.directory / "rollouts", record["step"])
        rewards = [
            {sum(row["reward"]) for row in rows if row["group"] == group} for group in {r["group"] for r in rows}
        ]
        assert len(rewards) == 4
        assert all(len(values) > 1 for values in rewards)


def zero(completion: str, example: Any) -> float:
    return 0.0


def test_step_without_kept_groups_changes_nothing(tmp_path: Path) -> None:
    summary = train(fake(algorithm=dapo.Config()), rewards=[zero], directory=tmp_path / "run")
    metrics = records(summary)[1:]
    assert all(record["rollout/kept_fraction"] == 0 and "policy/grad_norm" not in record for record in metrics)
    assert summary.before == summary.after
    assert not (summary.directory / "rollouts").exists()
    for record in metrics:  # sampling takes time
        assert record["rollout/tokens"] >= record["rollout/sampled"]
        assert record["time/tokens_per_second"] == pytest.approx(record["rollout/tokens"] / record["time/step"])


def test_step_without_kept_groups_advances_the_learning_rate_schedule(tmp_path: Path) -> None:
    config = small_real(2, algorithm=dapo.Config(), evaluate=None)
    summary = train(config, rewards=[zero], directory=tmp_path / "run")
    assert "rollout/kept_fraction" in records(summary)[-1]
    position = saved_tensors(summary.checkpoint / "policy")["position"]
    assert position == requirements_of(config).updates(config.max_steps)["policy"] == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluate": evolve(fake().evaluate, data="nope.parquet")},
        {"model": Model("/nonexistent")},
        {
            "algorithm": Composition(ppo.Config(), (kl_reward.Config(coef=0.1),)),
            "roles": {"reference": Role(model="/nonexistent")},
        },
    ],
    ids=["problems", "model", "model of a role"],
)
def test_missing_files_are_refused_before_a_run_is_discarded(tmp_path: Path, changes: dict[str, Any]) -> None:
    summary = train(fake(1, evaluate=None), directory=tmp_path / "run")
    with pytest.raises(InputError):
        train(fake(**changes), directory=tmp_path / "run", fresh=True)
    assert (summary.directory / "summary.json").exists()
    with pytest.raises(InputError):
        train(small(max_steps=8, **changes), directory=tmp_path / "other")
    assert not (tmp_path / "other").exists(), "the initial run is not started either"


def broken(completion: str, example: Any) -> float:
    raise ValueError("no")


def test_reward_that_raises_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(RewardError, match="broken raised\n(.*\n)*.*ValueError: no"):
        train(fake(evaluate=None), rewards=[broken], directory=tmp_path / "run")


def test_engines_are_closed_when_a_run_ends_or_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    monkeypatch.setattr(fake_generator.FakeGenerator, "close", lambda self: closed.append("generator"))
    monkeypatch.setattr("purerl.backends.fake.trainer.FakeTrainer.close", lambda self: closed.append("trainer"))
    with pytest.raises(RewardError):
        train(fake(), rewards=[broken], directory=tmp_path / "broken")
    assert sorted(closed) == ["generator", "trainer"]
    train(fake(max_steps=1), directory=tmp_path / "finished")
    assert sorted(closed) == ["generator"] * 2 + ["trainer"] * 2


def test_stop_when_ends_the_run_with_an_evaluation(tmp_path: Path) -> None:
    summary = train(fake(stop_when=StopWhen(metric="reward/valid_fraction", at_least=1.0)), directory=tmp_path / "run")
    assert summary.steps == 1
    assert sorted(summary.after) == sorted(summary.before)
    assert "eval/accuracy" in summary.after
    assert "eval/accuracy" in records(summary)[-1]


def test_finished_run_returns_its_summary_and_is_discarded_with_fresh(tmp_path: Path) -> None:
    first = train(fake(2), directory=tmp_path / "run")
    weights = first.model / "model.safetensors"
    written = weights.stat().st_mtime_ns
    stored = train(fake(2), directory=tmp_path / "run")
    assert (stored, stored.was_finished, first.was_finished) == (first, True, False)
    assert weights.stat().st_mtime_ns == written
    again = purerl.train(fake(2), directory=tmp_path / "run", fresh=True)
    assert (again.before, again.after) == (first.before, first.after)


@pytest.mark.slow
def test_microbatches_change_results_only_by_rounding(tmp_path: Path) -> None:
    config = small_real(2, evaluate=None)
    budgets = {
        "small": {"max_tokens_per_microbatch": 20},
        "large": {"max_tokens_per_microbatch": 4096},
        "rows": {"max_tokens_per_microbatch": None, "max_rows_per_microbatch": 3},
    }
    small, large, rows = (
        records(train(evolve(config, trainer=evolve(config.trainer, **budget)), directory=tmp_path / name))[1]
        for name, budget in budgets.items()
    )
    for name in ("policy/grad_norm", "policy/loss/policy", "policy/entropy", "policy/ratio", "reward/mean"):
        assert small[name] == pytest.approx(large[name], rel=1e-4, abs=1e-6), name
        assert rows[name] == pytest.approx(large[name], rel=1e-4, abs=1e-6), name


# --- stop_when ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "suggestion"), [("eval/acuracy", "eval/accuracy"), ("policy/entrpy", "policy/entropy")]
)
def test_unknown_metric_of_stop_when_is_refused_before_anything_is_done(
    metric: str, suggestion: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        train(fake(stop_when=StopWhen(metric=metric, at_least=1)), directory=tmp_path / "run")
    assert str(caught.value) == (
        f"stop_when.metric\n  got:  {metric}\n  need: a metric of the run\n  do:   did you mean '{suggestion}'?"
    )
    assert not (tmp_path / "run").exists()


def test_a_reward_that_no_function_has_is_noted_and_refused_after_the_first_step(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="did you mean 'reward/mean'"):
        train(fake(stop_when=StopWhen(metric="reward/maen", at_least=1)), directory=tmp_path / "run")
    assert records(tmp_path / "run")[-1]["step"] == 1
    output = "".join(capfd.readouterr())
    assert "stop_when.metric: no reward of the run is called 'maen'" in output
    assert "did you mean 'mean'?" in output


def test_a_metric_of_a_callback_stops_a_run(tmp_path: Path) -> None:
    callbacks = Callbacks(on_step=lambda record, control: control.log("policy/mine", record["step"]))
    config = fake(max_steps=4, stop_when=StopWhen(metric="policy/mine", at_least=2))
    assert train(config, directory=tmp_path / "run", callbacks=callbacks).steps == 2
    with pytest.raises(ConfigError, match=r"stop_when.metric\n  got:  policy/mine"):
        train(config, directory=tmp_path / "other")


@pytest.mark.parametrize("metric", ["eval/accuracy", "reward/mean"])
def test_metric_of_stop_when_may_be_missing_in_the_first_records(metric: str, tmp_path: Path) -> None:
    calls = 0

    def not_at_first(completion: str, example: Any) -> float | None:
        """No reward in the first evaluation and in the first step."""
        nonlocal calls
        calls += 1
        return digits(completion, example) if calls > 16 + 16 else None

    config = fake(stop_when=StopWhen(metric=metric, at_least=100.0))
    summary = train(config, rewards=[not_at_first], directory=tmp_path / "run")
    assert [metric in record for record in records(summary)[:2]] == [False, False]
    assert metric in records(summary)[-1]
    assert summary.steps == 4


def test_metric_of_stop_when_may_be_missing_during_critic_warmup(tmp_path: Path) -> None:
    config = fake(algorithm=ppo.Config(), critic_warmup=2, stop_when=StopWhen(metric="policy/entropy", at_least=100.0))
    summary = train(config, directory=tmp_path / "run")
    assert ["policy/entropy" in record for record in records(summary)] == [False, False, False, True, True]
