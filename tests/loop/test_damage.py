"""A run whose files were damaged, deleted or replaced resumes with the same results, or says what to do."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.config.schema import RunConfig
from purerl.errors import CheckpointError, DataError, RunDirectoryError
from purerl.loop import remaining_steps as loop
from purerl.loop.train import claim_directory, train
from purerl.runs.evaluation import evaluation_of_run
from purerl.store.checkpoint import newest
from tests.store.damage import DAMAGES, flip

from .runs import records, train_until, without_times
from .small import fake

CONFIG = fake(max_steps=6)
FILES = ("policy/weights.safetensors", "loop.pt", "manifest.json")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without an interruption."""
    return train(CONFIG, directory=tmp_path_factory.mktemp("finished") / "run").directory


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted after its fifth step. It has checkpoints of its second and fourth step."""
    directory = tmp_path_factory.mktemp("interrupted") / "run"
    train_until(5, CONFIG, directory=directory)
    return directory


@pytest.fixture
def run(interrupted: Path, tmp_path: Path) -> Path:
    """A copy of the interrupted run, for one test."""
    return Path(shutil.copytree(interrupted, tmp_path / "run"))


def _resume(run: Path, finished: Path) -> None:
    """Resume the run, and compare its metrics and its model with those of the run without an interruption."""
    train(CONFIG, directory=run)
    assert without_times(records(run)) == without_times(records(finished))
    model = Path("final") / "model.safetensors"
    assert (run / model).read_bytes() == (finished / model).read_bytes()


# --- checkpoints --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", FILES)
def test_run_with_a_damaged_checkpoint_resumes_from_the_one_before(
    run: Path, finished: Path, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    flip(run / "checkpoints" / "000004" / file)
    _resume(run, finished)
    message, renamed = caplog.messages
    assert renamed.endswith("which is renamed to 000004.unused")
    assert message.startswith(f"checkpoint {run}/checkpoints/000004 cannot be used: {file} ")
    assert message.endswith(f"{run}/checkpoints/000002 is used instead")
    assert newest(run / "checkpoints") == run / "checkpoints" / "000006"


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", FILES[1:])
def test_run_whose_checkpoints_are_all_damaged_is_refused_and_not_changed(run: Path, damage: str, file: str) -> None:
    for step in ("000002", "000004"):
        DAMAGES[damage](run / "checkpoints" / step / file)
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match=f"got:  000004: {file} .*; 000002: {file} .*(\n.*)*--fresh"):
        train(CONFIG, directory=run)
    assert (run / "metrics.jsonl").read_bytes() == before
    assert max(path.name for path in (run / "rollouts").iterdir()) == "000005.parquet"


def test_evaluation_does_not_use_a_damaged_checkpoint(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    flip(run / "checkpoints" / "000004" / FILES[0])
    assert evaluation_of_run(run, {}).checkpoint == run / "checkpoints" / "000002"
    assert "000004 cannot be used" in caplog.text
    flip(run / "checkpoints" / "000002" / FILES[0])
    with pytest.raises(CheckpointError, match="no checkpoint in .* can be used"):
        evaluation_of_run(run, {})


def test_run_that_starts_again_says_so(tmp_path: Path, finished: Path, caplog: pytest.LogCaptureFixture) -> None:
    train_until(1, CONFIG, directory=tmp_path / "run")
    assert not caplog.messages
    _resume(tmp_path / "run", finished)
    assert caplog.messages == ["there is no checkpoint yet: the run starts again, and repeats its first 1 steps"]


# --- metrics and rollouts -----------------------------------------------------------------------------------------


def _keep(*steps: int) -> Callable[[Path], object]:
    """Keep only the lines of these steps."""

    def edit(path: Path) -> None:
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[step] for step in steps))

    return edit


@pytest.mark.parametrize("kept", [(0, 1, 2), (0, 1, 2, 3), (0, 1, 2, 4, 5)])
def test_run_without_the_metrics_of_a_checkpoint_resumes_from_the_one_before(
    run: Path, finished: Path, kept: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    _keep(*kept)(run / "metrics.jsonl")
    _resume(run, finished)
    missing = {2: "3 to 4", 3: "4", 5: "3"}[kept[-1]]
    assert f"000004 cannot be used: metrics.jsonl has no lines of steps {missing}; " in caplog.text


@pytest.mark.parametrize("damage", [Path.unlink, *map(DAMAGES.get, ("empty", "zeros")), _keep(0, 1), _keep(1, 2, 3, 4)])
def test_run_without_the_metrics_of_any_checkpoint_is_refused(run: Path, damage: Callable[[Path], object]) -> None:
    damage(run / "metrics.jsonl")
    with pytest.raises(CheckpointError, match="000002: metrics.jsonl has no lines of steps") as caught:
        train(CONFIG, directory=run)
    assert "  do:   restore them from a copy" in str(caught.value)
    assert newest(run / "checkpoints") == run / "checkpoints" / "000004", "nothing has changed"


def test_metrics_and_rollouts_are_on_the_disk_before_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace
    target = "/proc/self/fd/{}"
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append(str(Path(target.format(fd)).readlink())), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda source, path: (events.append(f"-> {path}"), replace(source, path)))
    run = tmp_path / "run"
    train_until(4, CONFIG, directory=run)
    committed = [events.index(f"-> {run}/checkpoints/{step:06d}/manifest.json") for step in (2, 4)]
    for start, end, steps in ((0, committed[0], (1, 2)), (*committed, (3, 4))):
        before = events[start:end]
        for step in steps:
            path = f"{run}/rollouts/{step:06d}.parquet"
            assert before.index(f"-> {path}") < before.index(path), "it is written, and then flushed"
        assert {f"{run}/metrics.jsonl", f"{run}/rollouts", str(run)} <= set(before)


def test_missing_rollouts_are_reported_and_the_run_resumes(
    run: Path, finished: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (1, 2, 4):
        (run / "rollouts" / f"{step:06d}.parquet").unlink()
    _resume(run, finished)
    (message,) = caplog.messages
    assert message.startswith(f"{run}/rollouts has no rollouts of steps 1 to 2, 4; the run does not need them")


def test_files_of_the_user_do_not_disturb_a_run_and_stay(run: Path, finished: Path) -> None:
    paths = [run / "rollouts" / "notes.parquet", run / "rollouts" / "9.parquet", run / "checkpoints" / "notes.txt"]
    for path in paths:
        path.write_text("mine")
    (run / "checkpoints" / "2024").mkdir()
    _resume(run, finished)
    assert [path.read_text() for path in paths] == ["mine"] * 3
    assert (run / "checkpoints" / "2024").is_dir()


# --- other files --------------------------------------------------------------------------------------------------


BROKEN = {
    "data.json": ("", "\0" * 9, "[]", "null", "{", '{"files": 3}', '{"files": {"a": []}}', None),
    "summary.json": ("", "\0" * 9, "[]", "null", "{", None),
    "identity": ("", "\0" * 9, "a b", None),
    "metrics.jsonl": ("\0\n", "[]\n", "null\n", None),
    "failures.jsonl": ("\0\n", "[]\n", "null\n", None),
    "config.toml": ("", "\0" * 9, f"# {'0' * 64}\nx", f"# {'0' * 64}\nx = 1", None),
}
"""Contents that these files cannot have; None: a directory."""


@pytest.mark.parametrize(("file", "content"), [(file, content) for file, each in BROKEN.items() for content in each])
def test_damaged_file_of_a_run_is_an_error_with_a_remedy(run: Path, file: str, content: str | None) -> None:
    (run / file).unlink(missing_ok=True)
    if content is None:
        (run / file).mkdir()
    else:
        (run / file).write_text(content)
    with pytest.raises((RunDirectoryError, CheckpointError, DataError)) as caught:
        train(CONFIG, directory=run)
    assert file in str(caught.value)
    assert "  do:   " in str(caught.value)
    assert (run / "rollouts" / "000005.parquet").exists(), "nothing has been removed"


@pytest.mark.parametrize("name", ["checkpoints", "rollouts"])
def test_folder_that_is_a_link_is_refused_and_its_target_stays(run: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / "elsewhere"
    shutil.move(run / name, target)
    (target / "000009").mkdir()
    (run / name).symlink_to(target)
    before = sorted(target.rglob("*"))
    with pytest.raises(RunDirectoryError, match=f"run/{name}'\n  got:  a link\n  need: a directory of the run"):
        train(CONFIG, directory=run)
    assert sorted(target.rglob("*")) == before
    train(CONFIG, directory=run, fresh=True)
    assert sorted(target.rglob("*")) == before


# --- changes during a run -----------------------------------------------------------------------------------------


def _train_with(action: Callable[[], object], directory: Path, config: RunConfig = CONFIG) -> None:
    """Train, and call `action` before the third step."""
    advance = loop.advance

    def act(run: Any, state: Any, *arguments: Any) -> Any:
        if state.step == 2:
            action()
        return advance(run, state, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "advance", act)
        train(config, directory=directory)


def test_directory_that_is_deleted_during_the_run_is_not_created_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(RunDirectoryError, match="the directory was removed, or another process works on it"):
        _train_with(lambda: shutil.rmtree(run), run)
    assert not run.exists()


def test_run_stops_if_its_directory_belongs_to_another_run(tmp_path: Path) -> None:
    def start_another() -> None:
        shutil.rmtree(tmp_path / "run")
        train_until(1, evolve(CONFIG, seed=5), directory=tmp_path / "run")

    with pytest.raises(RunDirectoryError, match="another process works on it"):
        _train_with(start_another, tmp_path / "run")
    assert [record["step"] for record in records(tmp_path / "run")] == [0, 1]
    assert [path.name for path in (tmp_path / "run" / "rollouts").iterdir()] == ["000001.parquet"]


def test_lock_that_is_deleted_does_not_admit_two_runs(tmp_path: Path) -> None:
    first = claim_directory(tmp_path, CONFIG)
    (tmp_path / "lock").unlink()
    second = claim_directory(tmp_path, CONFIG)
    second.check_lock()
    with pytest.raises(RunDirectoryError, match="its file lock was deleted or replaced"):
        first.check_lock()
    first.release()
    second.release()


def test_metrics_that_are_deleted_during_the_run_are_an_error(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(RunDirectoryError, match=r"metrics.jsonl' was deleted during the run\n  do:   restore it"):
        _train_with((run / "metrics.jsonl").unlink, run)


def test_summary_that_is_removed_finishes_the_run_again(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    before = json.loads((run / "summary.json").read_text())
    (run / "summary.json").unlink()
    _resume(run, finished)
    after = json.loads((run / "summary.json").read_text())
    for summary in (before, after):
        del summary["measured"]["peak_process_memory"]  # of the process that has finished the run
    assert after == before
