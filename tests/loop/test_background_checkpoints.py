"""Runs whose checkpoints are written in the background: the same results, complete checkpoints, and no lost errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.backends.fake.trainer import FakeState
from purerl.errors import CheckpointError, RunStoppedError
from purerl.loop.callbacks import Callbacks
from purerl.loop.callbacks.control import Control
from purerl.loop.summary import Summary
from purerl.loop.train import train
from purerl.store.checkpoint import newest, saved_steps
from purerl.store.settings import Checkpoint

from .runs import records, without_times
from .small import fake

STEPS = 6
CONFIG = fake(max_steps=STEPS, checkpoint=Checkpoint(every=1, keep=2, background=True))


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """A run that waits for its checkpoints."""
    config = evolve(CONFIG, checkpoint=evolve(CONFIG.checkpoint, background=False))
    return train(config, directory=tmp_path_factory.mktemp("waiting") / "run")


def _assert_equal(summary: Summary, expected: Summary) -> None:
    assert without_times(records(summary)) == without_times(records(expected))
    assert (summary.model / "model.safetensors").read_bytes() == (expected.model / "model.safetensors").read_bytes()
    paths = [each.directory / "checkpoints" for each in (summary, expected)]
    files = [{str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*.*")} for path in paths]
    assert files[0] == files[1]


def test_results_and_files_are_those_of_a_run_that_waits(tmp_path: Path, waiting: Summary) -> None:
    written: list[Path] = []

    def on_checkpoint(path: Path, control: Control) -> None:
        assert (path / "manifest.json").is_file()
        written.append(path)

    summary = train(CONFIG, directory=tmp_path / "run", callbacks=Callbacks(on_checkpoint=on_checkpoint))
    _assert_equal(summary, waiting)
    assert [path.name for path in written] == [f"{step:06d}" for step in range(1, STEPS + 1)]


class Obstacle:
    """The third checkpoint cannot be written, and its thread says so when `gate` is open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate, self.raised = threading.Event(), threading.Event()
        write = FakeState.write

        def fail(state: FakeState, path: Path, *args: Any) -> None:
            if path.parent.name != "000003":
                write(state, path, *args)
                return
            assert self.gate.wait(60)
            self.raised.set()
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(FakeState, "write", fail)


@pytest.fixture
def obstacle(monkeypatch: pytest.MonkeyPatch) -> Iterator[Obstacle]:
    obstacle = Obstacle(monkeypatch)
    yield obstacle
    obstacle.gate.set()


@pytest.mark.parametrize("every", [1, 3], ids=["the next checkpoint", "the next step"])
def test_error_of_the_thread_ends_the_run_which_resumes(
    every: int, tmp_path: Path, waiting: Summary, obstacle: Obstacle, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = evolve(CONFIG, checkpoint=evolve(CONFIG.checkpoint, every=every), max_steps=STEPS)
    calls = iter(range(1, STEPS + 2))

    def before_step() -> bool:
        if next(calls) == 5:
            obstacle.gate.set()
        return False

    if every == 1:
        obstacle.gate.set()
    with pytest.raises(CheckpointError, match=r"000003' cannot be written\n  got:  \[Errno 28\] No space left"):
        train(config, directory=tmp_path / "run", callbacks=Callbacks(should_stop=before_step))
    assert obstacle.raised.is_set()
    assert saved_steps(tmp_path / "run/checkpoints") == ({1, 2} if every == 1 else set())
    assert not (tmp_path / "run/checkpoints/000003").exists()
    monkeypatch.undo()
    summary = train(CONFIG, directory=tmp_path / "run")
    _assert_equal(summary, waiting)


def test_run_that_is_stopped_waits_for_its_checkpoint(tmp_path: Path, waiting: Summary) -> None:
    calls = iter([False, False, True])
    with pytest.raises(RunStoppedError, match="stopped after step 2"):
        train(CONFIG, directory=tmp_path / "run", callbacks=Callbacks(should_stop=lambda: next(calls)))
    assert newest(tmp_path / "run/checkpoints") == tmp_path / "run/checkpoints/000002"
    _assert_equal(train(CONFIG, directory=tmp_path / "run"), waiting)


def test_best_checkpoint_is_compared_with_the_one_that_is_being_written(tmp_path: Path) -> None:
    settings = Checkpoint(every=1, keep=1, best="rollout/sampled", best_mode="min")  # equal: the first one is the best
    runs = [
        train(
            fake(max_steps=4, checkpoint=evolve(settings, background=background)), directory=tmp_path / str(background)
        )
        for background in (False, True)
    ]
    names = [sorted(path.name for path in (run.directory / "checkpoints").iterdir()) for run in runs]
    assert names[0] == names[1] == ["000001", "000004"]
    assert runs[0].best_step == runs[1].best_step == 1
