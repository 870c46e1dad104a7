"""A run that starts from a checkpoint of another run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.algos import dr_grpo, grpo, ppo, spo
from purerl.algos.modifiers import kl_loss
from purerl.composition import Composition
from purerl.config.schema import RunConfig
from purerl.errors import CheckpointError, ConfigError, RunDirectoryError
from purerl.loop.train import Summary, train
from purerl.monitoring.trackers import tensorboard
from purerl.opening import start_checkpoint as module
from purerl.opening.start_checkpoint import StartCheckpoint, parse_start_checkpoint
from purerl.store.settings import Checkpoint

from .runs import records, train_until, without_times
from .small import fake, small


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """A finished run of 4 steps with the checkpoints 2 and 4."""
    config = fake(checkpoint=Checkpoint(every=2, keep=2, best="reward/mean", best_mode="min"))
    return train(config, directory=tmp_path_factory.mktemp("runs") / "old")


def _new(tmp_path: Path, source: object, **changes: Any) -> Summary:
    return train(fake(**{"max_steps": 6} | changes), directory=tmp_path / "new", resume_from=str(source))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("runs/old", StartCheckpoint(Path("runs/old"))),
        ("runs/old:40", StartCheckpoint(Path("runs/old"), "40")),
        ("runs/old:000040", StartCheckpoint(Path("runs/old"), "40")),
        ("runs/old:latest", StartCheckpoint(Path("runs/old"))),
        ("runs/old:best", StartCheckpoint(Path("runs/old"), "best")),
        ("runs/old/checkpoints/000040", StartCheckpoint(Path("runs/old"), "40")),
    ],
)
def test_name_of_a_checkpoint(text: str, expected: StartCheckpoint) -> None:
    assert parse_start_checkpoint(text) == expected


def test_directory_with_a_colon_is_a_run(tmp_path: Path) -> None:
    (tmp_path / "a:1").mkdir()
    assert parse_start_checkpoint(tmp_path / "a:1") == StartCheckpoint(tmp_path / "a:1")
    with pytest.raises(ConfigError, match="resume_from\n  got:  runs/a:last"):
        parse_start_checkpoint("runs/a:last")


def test_new_run_continues_the_old_one_bit_for_bit(old: Summary, tmp_path: Path) -> None:
    """Its trainer has a constant learning rate, so a run of 6 steps from the start gives the same result."""
    expected = train(fake(max_steps=6), directory=tmp_path / "uninterrupted")
    new = _new(tmp_path, f"{old.directory}:2")
    assert without_times(records(new)) == without_times(records(expected))
    assert (new.before, new.after) == (expected.before, expected.after)
    name = "model.safetensors"
    assert (new.model / name).read_bytes() == (expected.model / name).read_bytes()
    stored = json.loads((new.directory / "origin.json").read_text())
    assert (stored["run"], stored["step"]) == (str(old.directory), 2)
    assert records(old)[-1]["step"] == 4, "the old run is unchanged"
    assert _new(tmp_path, f"{old.directory}:2").was_finished, "the same command again"


def test_best_and_newest_checkpoints_can_be_named(old: Summary, tmp_path: Path) -> None:
    steps = {}
    for name in ("best", "latest"):
        run = train(fake(max_steps=5), directory=tmp_path / name, resume_from=f"{old.directory}:{name}")
        steps[name] = json.loads((run.directory / "origin.json").read_text())["step"]
    assert steps == {"best": old.best_step, "latest": 4}


def test_configuration_may_differ_where_the_checkpoint_fits(
    old: Summary, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {
        "algorithm": Composition(dr_grpo.Config(), (kl_loss.Config(coef=0.01),)),  # needs a reference model
        "batch_size": 6,
        "seed": 3,
        "num_minibatches": 1,
    }
    new = _new(tmp_path, old.directory, **changes)
    assert [record["step"] for record in records(new)] == [0, 1, 2, 3, 4, 5, 6]
    assert "policy/ref_kl" in records(new)[-1]
    assert records(new)[-1]["rollout/sampled"] == 24
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith(f"addition: started from step 4 of {old.directory}")


def test_state_of_the_advantages_is_kept_only_for_the_same_advantages(tmp_path: Path) -> None:
    source = train(fake(algorithm=spo.Config()), directory=tmp_path / "spo").directory
    same = train(fake(algorithm=spo.Config(), max_steps=6), directory=tmp_path / "same", resume_from=source)
    longer = train(fake(algorithm=spo.Config(), max_steps=6), directory=tmp_path / "longer")
    assert without_times(records(same)) == without_times(records(longer))
    other = train(fake(algorithm=grpo.Config(), max_steps=6), directory=tmp_path / "other", resume_from=source)
    assert not json.loads((other.directory / "origin.json").read_text())["same_advantage"]


def test_checkpoint_of_another_model_is_refused(old: Summary, tmp_path: Path) -> None:
    trainer, generator = (evolve(engine, vocab_size=15) for engine in (fake().trainer, fake().generator))
    with pytest.raises(CheckpointError, match="do not fit"):
        _new(tmp_path, old.directory, trainer=trainer, generator=generator)


def test_new_role_starts_from_its_own_model(old: Summary, tmp_path: Path) -> None:
    new = _new(tmp_path, old.directory, algorithm=ppo.Config())
    assert "critic/loss/value" in records(new)[-1]
    assert (new.checkpoint / "critic").is_dir()


def test_trackers_get_the_past(old: Summary, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    new = _new(tmp_path, old.directory, trackers=(tensorboard.Config(),))
    events = EventAccumulator(str(new.directory / "trackers" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("reward/mean")] == [1, 2, 3, 4, 5, 6]


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "changes", "error", "message"),
    [
        ("{old}:3", {}, CheckpointError, "got:  no complete checkpoint of step 3\n  need: one of: 2, 4"),
        ("{old}/nothing", {}, RunDirectoryError, "got:  no config.toml"),
        ("{new}", {}, RunDirectoryError, "cannot start from itself"),
        ("{old}", {"max_steps": 4}, ConfigError, "max_steps\n  got:  4\n  need: more than 4"),
        ("{old}", {"num_epochs": 4e-4, "max_steps": None}, ConfigError, "max_steps\n  got:  1\n  need: more than 4"),
    ],
)
def test_invalid_origin_is_refused(
    source: str, changes: dict[str, Any], error: type[Exception], message: str, old: Summary, tmp_path: Path
) -> None:
    with pytest.raises(error) as caught:
        _new(tmp_path, source.format(old=old.directory, new=tmp_path / "new"), **changes)
    assert message in str(caught.value)


def test_run_that_started_otherwise_is_refused(old: Summary, tmp_path: Path) -> None:
    copy = shutil.copytree(old.directory, tmp_path / "copy")
    with pytest.raises(RunDirectoryError, match="got:  it started by itself"):
        train(fake(max_steps=6), directory=copy, resume_from=old.directory)
    _new(tmp_path, f"{old.directory}:2")
    with pytest.raises(RunDirectoryError, match="got:  it started from '.*':2\n"):
        _new(tmp_path, f"{old.directory}:4")
    assert train(fake(max_steps=6), directory=tmp_path / "new").was_finished, "without resume_from"
    again = train(fake(max_steps=6), directory=tmp_path / "new", resume_from=f"{old.directory}:4", fresh=True)
    assert again.steps == 6


# --- interruptions -----------------------------------------------------------------------------------------------


def _fail_at(name: str) -> Callable[..., None]:
    original = getattr(module, name)

    def fail(*arguments: Any, **options: Any) -> None:
        original(*arguments, **options)
        raise KeyboardInterrupt

    return fail


@pytest.mark.parametrize("name", ["_reusable", "write_atomically", "_copy_tree", "_copy"])
def test_run_that_died_while_it_was_copied_continues(
    name: str, old: Summary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, name, _fail_at(name))
        with pytest.raises(KeyboardInterrupt):
            _new(tmp_path, old.directory)
    new = train(fake(max_steps=6), directory=tmp_path / "new")  # also without naming the origin again
    assert without_times(records(new))[:5] == without_times(records(old))
    assert new.steps == 6


def test_run_continues_when_its_origin_does_not_exist_any_more(old: Summary, tmp_path: Path) -> None:
    copy = shutil.copytree(old.directory, tmp_path / "copy")
    train_until(5, fake(max_steps=6), directory=tmp_path / "new", resume_from=copy)
    shutil.rmtree(copy)
    assert _new(tmp_path, copy).steps == 6


@pytest.mark.slow
def test_initial_run_is_copied(tmp_path: Path) -> None:
    config: RunConfig = small(2, trainer=evolve(small().trainer, lr_scheduler="constant"))
    old, longer = train(config, directory=tmp_path / "old"), evolve(config, max_steps=4)
    expected = train(longer, directory=tmp_path / "longer")
    new = train(longer, directory=tmp_path / "new", resume_from=old.directory)
    assert without_times(records(new)) == without_times(records(expected))
    assert (tmp_path / "new" / "initial_run" / "summary.json").exists()
    assert not (tmp_path / "new" / "initial_run" / "checkpoints").exists(), "the initial run is copied, not done again"


def test_prepared_files_are_copied_with_any_name(tmp_path: Path) -> None:
    config = fake(checkpoint=Checkpoint(every=2))
    train(config, directory=tmp_path / "old")
    prepared = {"lock", "checkpoints/1", "profile/checkpoints/a.partial"}
    for name in prepared:
        path = tmp_path / "old" / "prepared" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    new = train(evolve(config, max_steps=6), directory=tmp_path / "new", resume_from=tmp_path / "old")
    assert all((new.directory / "prepared" / name).exists() for name in prepared)
