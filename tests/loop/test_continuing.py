"""Changed settings of a started run: those that are allowed, and a greater length."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import attrs
import pytest
from attrs import evolve

from purerl.backends.hf import generator as hf_generator
from purerl.backends.hf import trainer as hf_trainer
from purerl.backends.serving.settings import ServerSettings
from purerl.backends.vllm import generator as vllm_generator
from purerl.config.schema import RunConfig, StopWhen
from purerl.config.structure import read_toml
from purerl.envs.settings import EnvironmentSettings
from purerl.errors import CheckpointError, ConfigError, RunDirectoryError
from purerl.evaluation.settings import Evaluate, Validation
from purerl.loop.train import claim_directory, train
from purerl.placement.settings import Placement
from purerl.rewards.settings import RewardWorkers
from purerl.rollouts.settings import Rollout
from purerl.settings import Model
from purerl.store.settings import Checkpoint

from .runs import records, train_until, without_times
from .small import fake, small, small_real

STALE = evolve(fake().rollout, max_staleness=1)
WAITS = evolve(fake().rollout, stall_timeout=60.0)


def _claim(directory: Path, before: RunConfig, after: RunConfig) -> tuple[Any, ...]:
    """The changes with which a started run of `before` accepts `after`."""
    claim_directory(directory, before).release()
    (directory / "metrics.jsonl").touch()
    claimed = claim_directory(directory, after)
    claimed.release()
    assert read_toml(directory / "config.toml", RunConfig) == after
    return tuple((change.key, change.before, change.after) for change in claimed.changes)


def _refusal(directory: Path, before: RunConfig, after: RunConfig) -> str:
    with pytest.raises(RunDirectoryError, match="contains a run with another configuration") as caught:
        _claim(directory, before, after)
    return str(caught.value)


def _real(**changes: Any) -> RunConfig:
    """A run with a constant learning rate."""
    trainer = evolve(small_real().trainer, lr_scheduler="constant", warmup_steps=None)
    return small_real(**{"trainer": trainer} | changes)


CHANGES = {
    "num_threads": {"num_threads": 3},
    "checkpoint.keep": {"checkpoint": evolve(small().checkpoint, keep=5)},
    "checkpoint.every": {"checkpoint": evolve(small().checkpoint, every=5)},
    "checkpoint.best": {"checkpoint": evolve(small().checkpoint, best="eval/accuracy")},
    "evaluate.every": {"evaluate": evolve(small().evaluate, every=5)},
    "reward_workers.num_workers": {"reward_workers": RewardWorkers(num_workers=3)},
    "trainer.device": {"trainer": evolve(_real().trainer, device="cuda:1")},
    "trainer.max_tokens_per_microbatch": {"trainer": evolve(_real().trainer, max_tokens_per_microbatch=64)},
    "trainer.max_rows_per_microbatch": {
        "trainer": evolve(_real().trainer, max_tokens_per_microbatch=None, max_rows_per_microbatch=4)
    },
    "trainer.recompute": {"trainer": evolve(_real().trainer, recompute="layers")},
    "generator.max_num_seqs": {"generator": evolve(small().generator, max_num_seqs=8)},
    "stop_when.metric": {"stop_when": StopWhen(metric="eval/accuracy", at_least=2.0)},
    "max_steps": {"max_steps": 9},
}
REFUSED = {
    "seed": {"seed": 5},
    "name": {"name": "b"},
    "batch_size": {"batch_size": 8},
    "trainer.lr": {"trainer": evolve(_real().trainer, lr=0.5)},
    "trainer.mixed_precision": {"trainer": evolve(_real().trainer, mixed_precision="bfloat16")},
    "rollout.temperature": {"rollout": evolve(small().rollout, temperature=0.5)},
    "evaluate.max_tokens": {"evaluate": evolve(small().evaluate, max_tokens=9)},
    "max_steps": {"max_steps": 1},
}


@pytest.mark.parametrize("key", CHANGES)
def test_setting_that_changes_nothing_in_the_past_may_change(key: str, tmp_path: Path) -> None:
    assert key in [name for name, *_ in _claim(tmp_path, _real(), _real(**CHANGES[key]))]


@pytest.mark.parametrize("key", REFUSED)
def test_setting_that_changes_the_past_is_refused(key: str, tmp_path: Path) -> None:
    assert f"\n  got:  {key}: " in _refusal(tmp_path, _real(), _real(**REFUSED[key]))


@pytest.mark.parametrize(
    "changes",
    [
        {"max_staleness": 0},
        {"max_staleness": 2},
        {"order": "finished"},
        {"order": "finished", "num_extra_groups": 2},
        {"background": True},
    ],
    ids=str,
)
def test_which_weights_sample_may_not_change(changes: dict[str, Any], tmp_path: Path) -> None:
    message = _refusal(tmp_path, fake(rollout=STALE), fake(rollout=evolve(STALE, **changes)))
    assert "to use the new settings from the last checkpoint on, --resume-from" in message


def test_where_an_environment_runs_may_change_but_not_what_it_does(tmp_path: Path) -> None:
    def run_in_environment(**changes: Any) -> RunConfig:
        return fake(rewards=(), environment=EnvironmentSettings(factory="tests.loop.games:Evens", **changes))

    changes = {"timeout": 1.0, "run_in": "thread", "num_workers": 3}
    changed = _claim(tmp_path / "a", run_in_environment(), run_in_environment(**changes))
    assert [key for key, *_ in changed] == [f"environment.{name}" for name in changes]
    assert [key for key, *_ in _claim(tmp_path / "b", fake(), fake(rollout=WAITS))] == ["rollout.stall_timeout"]
    message = _refusal(tmp_path / "c", run_in_environment(), run_in_environment(max_turns=3))
    assert "got:  environment.max_turns: 8 there, 3 now" in message


def test_initial_run_may_change_its_device_but_not_its_end(tmp_path: Path) -> None:
    first = small().initial_run
    cpu = evolve(first, trainer=evolve(first.trainer, device="cpu"))
    assert [key for key, *_ in _claim(tmp_path / "a", small(), small(initial_run=cpu))] == [
        "initial_run.trainer.device"
    ]
    for name, value in {"max_steps": 9, "stop_when": StopWhen(metric="eval/accuracy", at_least=2.0)}.items():
        message = _refusal(tmp_path / name, small(), small(initial_run=evolve(first, **{name: value})))
        assert f"got:  initial_run.{name}" in message


def test_every_setting_that_may_change_has_a_known_rule() -> None:
    engines = (hf_trainer.Config, hf_generator.Config, RunConfig, Checkpoint, RewardWorkers, StopWhen)
    rules = {field.metadata.get("may_change", False) for cls in engines for field in attrs.fields(cls)}
    assert rules == {True, False, "rounding", "end", "length"}


def test_every_setting_that_may_change_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "continuing.md").read_text(encoding="utf-8")
    of_reward_workers = attrs.fields_dict(RewardWorkers)
    names = [
        name
        for cls in (
            *(RunConfig, Model, Checkpoint, Rollout, Evaluate, Validation, EnvironmentSettings),
            *(hf_trainer.Config, hf_generator.Config, Placement, vllm_generator.Config, ServerSettings),
        )
        for name, field in attrs.fields_dict(cls).items()
        if field.metadata.get("may_change")
    ]
    table = page.partition("| setting | condition |")[2].partition("\n\n")[0]
    assert [name for name in names if f"`{name}`" not in table and f".{name}`" not in table] == []
    assert all(field.metadata["may_change"] is True for field in of_reward_workers.values())


# --- the message -------------------------------------------------------------------------------------------------


def test_message_lists_ten_differences_and_suggests_commands(tmp_path: Path) -> None:
    run = tmp_path / "a run"
    trainer = evolve(_real().trainer, lr=0.5, betas=(0.5, 0.5), eps=0.1, weight_decay=1.0, max_grad_norm=9.0)
    rollout = evolve(small().rollout, temperature=0.5, max_tokens=9, stop_strings=("x",))
    message = _refusal(run, _real(), _real(trainer=trainer, rollout=rollout, seed=3, batch_size=8, ppo_epochs=2))
    [got] = re.findall(r"^  got:  (.*)$", message, re.MULTILINE)
    assert got.count(" there, ") == 10
    assert got.endswith("; and 1 more")
    assert message.endswith(
        f"do:   for a new run add --directory '{run}-2'; to use the new settings from the last checkpoint on, "
        f"--resume-from '{run}' --directory '{run}-2'; to discard the old run, --fresh"
    )
    (tmp_path / "a run-2").mkdir()
    message = _refusal(run, _real(), _real(batch_size=8))
    command = f"--resume-from '{run}' --directory '{run}-3'"
    assert f"do:   to use the new settings from the last checkpoint on, {command}; for a new run" in message


# --- the length of a run -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "grows"),
    [
        ({"lr_scheduler": "constant"}, True),
        ({"lr_scheduler": "constant", "warmup_steps": 2}, True),
        ({"lr_scheduler": "constant", "warmup_ratio": 0.5}, False),
        ({"lr_scheduler": "cosine"}, False),
        ({"lr_scheduler": "cosine", "warmup_ratio": 0.5, "lr_scheduler_steps": 8}, True),
    ],
)
def test_length_grows_if_no_learning_rate_depends_on_it(changes: dict[str, Any], grows: bool, tmp_path: Path) -> None:
    trainer = evolve(_real().trainer, **changes)
    short, long = _real(trainer=trainer), _real(max_steps=9, trainer=trainer)
    if grows:
        assert _claim(tmp_path, short, long) == (("max_steps", 2, 9),)
        return
    message = _refusal(tmp_path, short, long)
    assert "got:  max_steps: 2 there, 9 now\n  need: the same length or a greater one" in message
    assert "do:   to use the new settings from the last checkpoint on, --resume-from" in message


def test_engine_that_does_not_say_whether_the_length_matters_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("purerl.backends.fake.trainer.depends_on_length")
    assert "got:  max_steps: 2 there, 9 now" in _refusal(tmp_path, fake(max_steps=2), fake(max_steps=9))


def test_extended_run_equals_a_longer_run_bit_for_bit(tmp_path: Path) -> None:
    trainer = evolve(small_real().trainer, lr_scheduler="cosine", warmup_steps=1, lr_scheduler_steps=6)
    long = train(small_real(4, trainer=trainer), directory=tmp_path / "long")
    short = train(small_real(2, trainer=trainer), directory=tmp_path / "run")
    extended = train(small_real(4, trainer=trainer), directory=tmp_path / "run")
    assert (short.steps, extended.steps) == (2, 4)
    assert without_times(records(extended)) == without_times(records(long))
    weights = [(summary.model / "model.safetensors").read_bytes() for summary in (extended, long)]
    assert weights[0] == weights[1]
    rates = [record["policy/learning_rate"] for record in records(extended)[1:]]
    assert len(set(rates)) == 4, "the learning rate follows the schedule"


def test_run_that_died_while_it_was_reopened_is_extended(tmp_path: Path) -> None:
    train(fake(max_steps=2), directory=tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()  # the first thing that happens
    assert train(fake(max_steps=4), directory=tmp_path / "run").steps == 4


@pytest.mark.parametrize("missing", ["metrics.jsonl", "checkpoints"])
def test_finished_run_that_cannot_be_extended_is_refused_and_stays_finished(tmp_path: Path, missing: str) -> None:
    run, empty = tmp_path / "run", {"metrics.jsonl": Path.touch, "checkpoints": Path.mkdir}
    train(fake(max_steps=2), directory=run)
    (run / missing).rename(tmp_path / missing)
    empty[missing](run / missing)
    with pytest.raises(CheckpointError, match="checkpoints'"):
        train(fake(max_steps=4), directory=run)
    assert train(fake(max_steps=2), directory=run).was_finished
    assert (run / "rollouts" / "000002.parquet").exists(), "nothing has been removed"


def test_finished_run_without_its_model_exports_it_again(tmp_path: Path) -> None:
    first = train(fake(max_steps=2), directory=tmp_path / "run")
    weights = (first.model / "model.safetensors").read_bytes()
    shutil.rmtree(first.model)
    again = train(fake(max_steps=2), directory=tmp_path / "run")
    assert (again, again.was_finished) == (first, False)
    assert (again.model / "model.safetensors").read_bytes() == weights


def test_epochs_and_the_end_by_a_metric_may_be_extended(tmp_path: Path) -> None:
    epochs = [fake(max_steps=None, num_epochs=n * 4 / 9000) for n in (2, 3)]
    steps = [train(config, directory=tmp_path / "epochs").steps for config in (*epochs, epochs[1])]
    assert steps[0] < steps[1] == steps[2]
    at_once = StopWhen(metric="reward/valid_fraction", at_least=1.0)
    assert train(fake(stop_when=at_once), directory=tmp_path / "stopped").steps == 1
    assert train(fake(stop_when=evolve(at_once, at_least=0.5)), directory=tmp_path / "stopped").was_finished
    assert train(fake(), directory=tmp_path / "stopped").steps == 4


def test_schedule_steps_without_effect_are_refused() -> None:
    with pytest.raises(ConfigError, match="lr_scheduler_steps has no effect"):
        hf_trainer.Config(lr_scheduler_steps=5)
    with pytest.raises(ConfigError, match="warmup_steps\n  got:  5\n  need: less than lr_scheduler_steps, 5"):
        hf_trainer.Config(lr_scheduler="linear", lr_scheduler_steps=5, warmup_steps=5)


# --- what a resumed run says -------------------------------------------------------------------------------------


def test_resumed_run_says_from_where_and_what_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_until(3, fake(), directory=tmp_path / "run")
    capsys.readouterr()
    changed = fake(num_threads=2, checkpoint=evolve(fake().checkpoint, keep=7))
    train(changed, directory=tmp_path / "run")
    assert capsys.readouterr().out.splitlines()[0] == (
        "addition: resumed from step 2; "
        "changed: checkpoint.keep 2 -> 7; num_threads 1 -> 2 (results change only by rounding)"
    )


# --- the best checkpoint -----------------------------------------------------------------------------------------


def test_best_checkpoint_is_kept_beside_the_newest(tmp_path: Path) -> None:
    values = iter([0.1, 0.0, 0.2, 0.0, 0.9, 0.0, 0.5, 0.0, 0.9, 0.0, 0.3, 0.0, 0.4])
    calls: list[float] = []

    def of_evaluation(completion: str, example: Any) -> float:
        """A value for each evaluation and each step. Both have 16 completions."""
        if not calls:
            calls.extend([next(values)] * 16)
        return calls.pop()

    settings = Checkpoint(every=100, keep=1, best="eval/reward")
    config = fake(max_steps=6, checkpoint=settings, evaluate=evolve(fake().evaluate, every=1))
    summary = train(config, rewards=[of_evaluation], directory=tmp_path / "run")
    assert [record["eval/reward"] for record in records(summary)] == pytest.approx([0.1, 0.2, 0.9, 0.5, 0.9, 0.3, 0.4])
    assert summary.best_step == 2
    assert summary.best_checkpoint == tmp_path / "run" / "checkpoints" / "000002"
    names = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert names == {"000002", "000006"}


def test_best_metric_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="checkpoint.best\n  got:  eval/acuracy\n(.*\n)*.*'eval/accuracy'"):
        train(fake(checkpoint=Checkpoint(best="eval/acuracy")), directory=tmp_path / "run")
    with pytest.raises(ConfigError, match="checkpoint.best has no effect"):
        train(fake(checkpoint=Checkpoint(best="eval/accuracy"), evaluate=None), directory=tmp_path / "other")
    with pytest.raises(ConfigError, match="best_mode has no effect"):
        Checkpoint(best_mode="max")
