"""Whole runs, with real small engines: what goes through the loop, and what it leaves behind."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from attrs import evolve
from tensordict import TensorDict

import purerl
from purerl.algos import dapo, dpo, gdpo, gvpo, opd, opd_top_k, sft
from purerl.algos.algebra import Algorithm, Counts, Objective, prepare_step, roles
from purerl.backends.fake import generator as fake_generator
from purerl.backends.fake import trainer as fake_trainer
from purerl.batch import FIELDS, empty_batch
from purerl.config.check import check, evaluated, needs_rollouts, updates_of
from purerl.config.schema import RunConfig, StopWhen
from purerl.errors import ConfigError, InputError, RewardError, RunDirectoryError
from purerl.loop.train import Summary, train
from purerl.plugins import find, names
from purerl.protocols import Model
from purerl.recipes.addition import character_tokenizer
from purerl.store.rollouts import read_rollouts

from .small import fake, small


def records(summary: Summary) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (summary.directory / "metrics.jsonl").read_text().splitlines()]


REFUSED = {
    "flowrl": "outputs log_partition are wanted",
    "opd_top_k": "outputs topk_logp are wanted",
    "gigpo": "'anchor', written by envs",
    "otb": "outputs sum_pi_squared are wanted",
    "rae": "'role', written by envs",
}
"""Algorithms that need what no run can offer yet, and how they are refused."""


@pytest.mark.parametrize("name", names("algorithm"))
def test_every_algorithm_goes_through_the_same_loop_or_is_refused_by_name(name: str, tmp_path: Path) -> None:
    module = find("algorithm", name)
    changes = _from_data(module.algorithm(), tmp_path) | _with_teacher(module.algorithm(), tmp_path / "teacher")
    config = fake(algorithm=module.Config(), **{"rollout": evolve(fake().rollout, samples_per_prompt=8)} | changes)
    if name in REFUSED:
        real = evolve(config, trainer=small().trainer, generator=small().generator)
        with pytest.raises(ConfigError, match=re.escape(REFUSED[name])):
            train(real, directory=tmp_path / "run")
        return
    summary = train(config, directory=tmp_path / "run")
    lines = records(summary)
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert all(math.isfinite(value) for line in lines for value in line.values())
    for role in {objective.role for objective in module.algorithm().objectives}:
        assert max(line.get(f"{role}/grad_norm", 0) for line in lines[1:]) > 0


def _from_data(algorithm: Algorithm, folder: Path) -> dict[str, Any]:
    """What a run needs where nothing is sampled for training."""
    if needs_rollouts(algorithm):
        return {}
    return {"rollout": None, "data": _pairs(folder / "pairs.parquet")}


def _with_teacher(algorithm: Algorithm, folder: Path) -> dict[str, Any]:
    if "teacher" not in roles(algorithm, FIELDS):
        return {}
    # The fake engine draws a model from its name, where there is nothing of its own: this one is not the policy's.
    character_tokenizer().save_pretrained(folder)
    return {"teacher": Model(str(folder))}


def test_rollouts_hold_what_was_sampled_and_made_of_it(tmp_path: Path) -> None:
    summary = train(fake(), directory=tmp_path / "run")
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
        right = sum(a == b for a, b in zip(row["completion"], problems[row["example"]]["answer"], strict=False)) / 3
        assert sum(row["reward"]) == row["reward"][-1] == pytest.approx(right)
    for group in {row["group"] for row in rows}:
        assert sum(row["advantage"][-1] for row in rows if row["group"] == group) == pytest.approx(0, abs=1e-5)


def test_one_step_off_policy_is_sampled_by_the_weights_before(tmp_path: Path) -> None:
    config = fake(max_steps=6, checkpoint=evolve(fake().checkpoint, every=100), evaluate=None)
    summary = train(evolve(config, rollout=evolve(config.rollout, max_staleness=1)), directory=tmp_path / "run")
    versions = [
        {version for row in read_rollouts(summary.directory / "rollouts", step) for version in row["version"][6:]}
        for step in range(1, 7)
    ]
    assert versions == [{0}, {0}, {1}, {2}, {3}, {4}]
    assert records(summary)[3]["mismatch/logp_abs_diff"] > 1e-3


def test_one_optimizer_step_is_taken_without_scoring_first(tmp_path: Path) -> None:
    """Two halves of a step at a learning rate of next to 0 see what the whole sees, though it scores nothing."""
    frozen = evolve(fake().trainer, learning_rate=1e-12)
    lines, rows = {}, {}
    for minibatches in (1, 2):
        # In one directory: the fake engine draws a model from its path.
        summary = train(fake(trainer=frozen, num_minibatches=minibatches), directory=tmp_path / "run", fresh=True)
        lines[minibatches] = records(summary)[1:]
        rows[minibatches] = read_rollouts(summary.directory / "rollouts", 1)
    for whole, halves in zip(lines[1], lines[2], strict=True):
        assert whole["mismatch/logp_abs_diff"] == pytest.approx(halves["mismatch/logp_abs_diff"], abs=1e-7)
        assert whole["policy/entropy"] == pytest.approx(halves["policy/entropy"])
        assert whole["policy/approx_kl"] == 0
    assert "old_logp" in rows[2][0]
    assert "old_logp" not in rows[1][0]


def test_dynamic_sampling_refills_groups_whose_rewards_are_equal(tmp_path: Path) -> None:
    config = fake(algorithm=dapo.Config(), rollout=evolve(fake().rollout, max_resample_rounds=20), max_steps=8)
    summary = train(config, directory=tmp_path / "run")
    lines = records(summary)[1:]
    assert max(line["rollout/sampled"] for line in lines) > 16
    for line in lines:
        assert line["rollout/kept_fraction"] == 16 / line["rollout/sampled"]
        rows = read_rollouts(summary.directory / "rollouts", line["step"])
        rewards = [
            {sum(row["reward"]) for row in rows if row["group"] == group} for group in {r["group"] for r in rows}
        ]
        assert len(rewards) == 4
        assert all(len(found) > 1 for found in rewards)


def never(completion: str, example: Any) -> float:
    return 0.0


def sometimes(completion: str, example: Any) -> dict[str, float] | None:
    return None if completion[:1] in "01234" else {"first": float(completion[:1] == "7"), "constant": 0.25}


@pytest.mark.parametrize(
    "changes", [{"evaluate": evolve(fake().evaluate, data="nope.parquet")}, {"model": Model("/nonexistent")}]
)
def test_what_cannot_be_read_is_refused_before_a_run_is_thrown_away(tmp_path: Path, changes: dict[str, Any]) -> None:
    summary = train(fake(), directory=tmp_path / "run")
    with pytest.raises(InputError):
        train(fake(**changes), directory=tmp_path / "run", fresh=True)
    assert (summary.directory / "summary.json").exists()
    with pytest.raises(InputError):
        train(small(max_steps=8, **changes), directory=tmp_path / "other")
    assert not (tmp_path / "other").exists(), "nor is the start of one done"


def test_where_no_group_is_kept_nothing_is_learned(tmp_path: Path) -> None:
    summary = train(fake(algorithm=dapo.Config()), rewards=[never], directory=tmp_path / "run")
    lines = records(summary)[1:]
    assert all(line["rollout/kept_fraction"] == 0 and "policy/grad_norm" not in line for line in lines)
    assert summary.before == summary.after
    for line in lines:  # what was sampled took its time
        assert line["rollout/tokens"] >= line["rollout/sampled"]
        assert line["time/tokens_per_second"] == pytest.approx(line["rollout/tokens"] / line["time/step"])


def test_where_no_group_is_kept_a_schedule_goes_on(tmp_path: Path) -> None:
    config = small(algorithm=dapo.Config(), initial_run=None, model=fake().model, evaluate=None)
    summary = train(config, rewards=[never], directory=tmp_path / "run")
    assert "rollout/kept_fraction" in records(summary)[-1]
    assert torch.load(summary.checkpoint / "policy" / "state.pt")["position"] == updates_of(config)


@pytest.mark.parametrize("name", sorted(set(names("algorithm")) - set(REFUSED)))
def test_every_algorithm_bears_an_optimizer_step_without_rows(name: str) -> None:
    algorithm = find("algorithm", name).algorithm()
    for objective in (*algorithm.before, *algorithm.objectives):
        trainer = fake_trainer.build(fake().trainer, model=fake().model, role=objective.role, updates=1, seed=0)
        before = dict(trainer.weights())
        trainer.step(*_begun(objective))
        assert all(torch.equal(weight, before[name]) for name, weight in trainer.weights())


def _begun(objective: Objective) -> tuple[TensorDict, Objective, dict[str, Counts]]:
    prepared, counts = prepare_step(objective, empty_batch())
    return prepared, objective, counts


def test_rewards_given_as_functions_have_components_and_may_not_tell(tmp_path: Path) -> None:
    summary = train(fake(), rewards=[sometimes], directory=tmp_path / "run")
    line = records(summary)[1]
    assert 0 < line["reward/valid_fraction"] < 1
    assert line["reward/constant"] == 0.25
    assert line["reward/mean"] == pytest.approx(line["reward/first"] + 0.25)
    for row in read_rollouts(summary.directory / "rollouts", 1):
        told = row["completion"][:1] not in "01234" or row["completion"] == ""
        assert any(row["mask"]) == (sometimes(row["completion"], {}) is not None), told


def zeta(completion: str, example: Any) -> float:
    return float(len(completion))


def alpha(completion: str, example: Any) -> float:
    return -float(completion.count("1"))


def test_components_come_in_the_order_of_their_rewards(tmp_path: Path) -> None:
    weighed, plain = gdpo.Config(weights=(1.0, 0.0)), gdpo.Config()
    advantages = []
    for algorithm, rewards in ((weighed, [zeta, alpha]), (plain, [zeta]), (plain, [alpha])):
        summary = train(fake(algorithm=algorithm), rewards=rewards, directory=tmp_path / "run", fresh=True)
        advantages.append([row["advantage"] for row in read_rollouts(summary.directory / "rollouts", 1)])
    assert advantages[0] == advantages[1] != advantages[2]


def broken(completion: str, example: Any) -> float:
    raise ValueError("no")


def test_a_reward_that_raises_stops_the_run_which_can_be_resumed(tmp_path: Path) -> None:
    config = fake(evaluate=None)
    with pytest.raises(RewardError, match="broken raised\n(.*\n)*.*ValueError: no"):
        train(config, rewards=[broken], directory=tmp_path / "run")


def test_the_generator_is_closed_however_the_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    monkeypatch.setattr(fake_generator.FakeGenerator, "close", lambda self: closed.append(id(self)))
    with pytest.raises(RewardError):
        train(fake(), rewards=[broken], directory=tmp_path / "broken")
    assert len(closed) == 1
    train(fake(), directory=tmp_path / "whole")
    assert len(closed) == 2


def _pairs(path: Path) -> str:
    rows = [{"prompt": f"{k}+{k}=", "chosen": f"{2 * k}", "rejected": "+", "completion": f"{2 * k}"} for k in range(5)]
    parquet.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


@pytest.mark.parametrize("algorithm", [sft.Config(), dpo.Config()], ids=["sft", "dpo"])
def test_learning_from_data_needs_no_generator_and_no_rewards(algorithm: Any, tmp_path: Path) -> None:
    nothing = {"rollout": None, "generator": None, "rewards": (), "evaluate": None}
    config = fake(algorithm=algorithm, data=_pairs(tmp_path / "pairs.parquet"), max_steps=30, **nothing)
    summary = train(config, directory=tmp_path / "run")
    lines = records(summary)
    losses = [value for line in lines[1:] for name, value in line.items() if name.startswith("policy/loss/")]
    assert losses[-1] < 0.8 * losses[0]
    assert not (summary.directory / "rollouts").exists()


def test_an_early_end(tmp_path: Path) -> None:
    summary = train(fake(stop_when=StopWhen(metric="reward/valid_fraction", at_least=1.0)), directory=tmp_path / "run")
    assert summary.steps == 1
    assert sorted(summary.after) == sorted(evaluated(fake().evaluate))
    assert "eval/accuracy" in records(summary)[-1]


def test_a_finished_run_is_refused_and_thrown_away_on_demand(tmp_path: Path) -> None:
    first = train(fake(), directory=tmp_path / "run")
    with pytest.raises(RunDirectoryError, match="is finished\n  do:   its model is in .*--fresh"):
        train(fake(), directory=tmp_path / "run")
    again = purerl.train(fake(), directory=tmp_path / "run", fresh=True)
    assert (again.before, again.after) == (first.before, first.after)


def test_the_seed_decides_and_nothing_else(tmp_path: Path) -> None:
    def lines(seed: int) -> list[dict[str, Any]]:
        # In one directory: the fake engine's weights are drawn from the model's path.
        found = records(train(fake(seed=seed), directory=tmp_path / "run", fresh=True))
        return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in found]

    one, same, other = lines(1), lines(1), lines(2)
    assert one == same
    assert one != other


def test_micro_batches_change_nothing_but_rounding(tmp_path: Path) -> None:
    config = small(initial_run=None, model=fake().model)
    summaries = [
        train(evolve(config, trainer=evolve(config.trainer, max_tokens_per_microbatch=n)), directory=tmp_path / f"{n}")
        for n in (20, 4096)
    ]
    one, other = (records(summary)[1] for summary in summaries)
    for name in ("policy/grad_norm", "policy/loss/policy", "policy/entropy", "policy/ratio", "reward/mean"):
        assert one[name] == pytest.approx(other[name], rel=1e-4, abs=1e-6), name


def _refused(**changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        train(fake(**changes), directory="/nonexistent/never/made")
    return str(caught.value)


def test_settings_without_effect_are_refused_before_anything_is_done() -> None:
    base: RunConfig = fake()
    nothing = {"rollout": None, "evaluate": None}
    assert "critic has no effect" in _refused(critic=base.trainer)
    assert "rollout has no effect" in _refused(algorithm=sft.Config())
    assert "generator has no effect" in _refused(algorithm=sft.Config(), **nothing)
    assert "rewards has no effect" in _refused(algorithm=sft.Config(), generator=None, **nothing)
    assert "rollout.max_resample_rounds has no effect" in _refused(rollout=evolve(base.rollout, max_resample_rounds=2))
    late = evolve(base.rollout, max_staleness=1)
    assert "rollout.max_staleness has no effect" in _refused(rollout=late, checkpoint=evolve(base.checkpoint, every=1))
    assert "rollout.max_staleness has no effect" in _refused(rollout=late, evaluate=evolve(base.evaluate, every=1))
    assert "stop_when has no effect" in _refused(stop_when=StopWhen(metric="eval/accuracy", at_least=1), evaluate=None)
    assert "initial_run.prepare_data has no effect" in _refused(
        initial_run=evolve(base, prepare_data=base.prepare_data)
    )
    assert "initial_run.initial_run has no effect" in _refused(
        initial_run=evolve(base, prepare_data=None, initial_run=base)
    )


def test_distillation_from_whole_distributions_learns_from_rollouts_or_from_data() -> None:
    base = fake(algorithm=opd_top_k.Config(), teacher=Model("{run}/teacher"), num_minibatches=1)
    check(base)
    check(evolve(base, rollout=None))


def test_what_is_missing_is_refused_before_anything_is_done() -> None:
    base: RunConfig = fake()
    assert "rollout is missing" in _refused(rollout=None)
    assert "opd reads old_logp" in _refused(algorithm=opd.Config(), teacher=base.model, rollout=None)
    assert "generator is missing" in _refused(generator=None)
    assert "rewards is missing" in _refused(rewards=())
    assert "every advantage is 0" in _refused(rollout=evolve(base.rollout, samples_per_prompt=1))
    assert "at most the rows of a step, 16" in _refused(num_minibatches=17)
    assert "at most the groups of a step, 4" in _refused(num_minibatches=5, algorithm=gvpo.Config())
    assert "did you mean 'eval/accuracy'?" in _refused(stop_when=StopWhen(metric="eval/acuracy", at_least=1))
    assert "nowhere" in _refused(rewards=("nowhere:reward",))
