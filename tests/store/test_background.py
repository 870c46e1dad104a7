"""Checkpoints that are written by a thread: their order, their errors, and what is in them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from purerl.errors import CheckpointError
from purerl.ranks import ONE_RANK, Ranks
from purerl.store.background import CheckpointWriter
from purerl.store.checkpoint import newest, restore, saved_steps
from purerl.store.commit import StagedCheckpoint, stage

WAIT = 60.0  # seconds: for a hang


class Staged:
    """A value that is written when `gate` is open."""

    def __init__(self, value: float, gate: threading.Event, error: Exception | None) -> None:
        self.value, self.gate, self.error = value, gate, error

    def write(self, path: Path, ranks: Ranks) -> Mapping[str, str] | None:
        assert self.gate.wait(WAIT)
        if self.error is not None:
            raise self.error
        (path / "value").write_text(str(self.value))
        return None


class Trainer:
    """A trainer whose only weight is a number."""

    def __init__(self) -> None:
        self.value, self.gate, self.error = 0.0, threading.Event(), None

    def stage(self) -> Staged:
        return Staged(self.value, self.gate, self.error)

    def save(self, path: Path) -> None:
        raise AssertionError("it can stage")

    def load(self, path: Path) -> None:
        self.value = float((path / "value").read_text())


@pytest.fixture
def trainer() -> Iterator[Any]:
    trainer = Trainer()
    yield trainer
    trainer.gate.set()


def _stage(folder: Path, step: int, trainer: Any, **settings: Any) -> Callable[[], StagedCheckpoint]:
    return partial(stage, folder, step, {"step": step}, {"policy": trainer}, keep=2, in_background=True, **settings)


def _writer() -> CheckpointWriter:
    return CheckpointWriter(ONE_RANK, background=True)


def test_checkpoint_has_the_state_in_which_it_was_staged(tmp_path: Path, trainer: Any) -> None:
    with _writer() as writer:
        trainer.value = 1.0
        writer.write(_stage(tmp_path, 1, trainer))
        trainer.value = 2.0
        assert (writer.steps_in_flight, writer.take_written(), newest(tmp_path)) == ([1], [], None)
        trainer.gate.set()
        writer.wait()
        assert (writer.steps_in_flight, writer.take_written()) == ([], [tmp_path / "000001"])
        assert writer.take_written() == []
    assert restore(tmp_path / "000001", {"policy": trainer}) == {"step": 1}
    assert trainer.value == 1.0


def test_next_checkpoint_waits_for_the_one_before(tmp_path: Path, trainer: Any) -> None:
    order: list[str] = []
    with _writer() as writer:
        writer.write(_stage(tmp_path, 1, trainer, flush_records=partial(order.append, "first")))
        threading.Timer(0.05, trainer.gate.set).start()
        writer.write(_stage(tmp_path, 2, trainer, flush_records=partial(order.append, "second")))
        assert order[0] == "first"
    assert order == ["first", "second"]
    assert saved_steps(tmp_path) == {1, 2}


def test_nothing_old_is_removed_before_the_new_one_is_complete(tmp_path: Path, trainer: Any) -> None:
    trainer.gate.set()
    with _writer() as writer:
        for step in (1, 2):
            writer.write(_stage(tmp_path, step, trainer))
        writer.wait()
        trainer.gate = threading.Event()
        writer.write(_stage(tmp_path, 3, trainer))
        assert saved_steps(tmp_path) == {1, 2}
        trainer.gate.set()
    assert saved_steps(tmp_path) == {2, 3}


def test_error_is_raised_by_the_next_wait_and_only_once(tmp_path: Path, trainer: Any) -> None:
    trainer.gate.set()
    with _writer() as writer:
        writer.write(_stage(tmp_path, 1, trainer))
        writer.wait()
        trainer.error = OSError(28, "No space left on device")
        writer.write(_stage(tmp_path, 2, trainer))
        with pytest.raises(CheckpointError, match=r"000002' cannot be written\n  got:  \[Errno 28\] No space"):
            writer.wait()
        assert not writer.has_failed
        assert writer.take_written() == [tmp_path / "000001"]
    assert [path.name for path in tmp_path.iterdir()] == ["000001"], "what was written of it is removed"


def test_error_is_noticed_before_anything_waits(tmp_path: Path, trainer: Any) -> None:
    trainer.error = OSError(28, "No space left on device")
    writer = _writer()
    writer.write(_stage(tmp_path, 1, trainer))
    assert not writer.has_failed
    trainer.gate.set()
    end = time.monotonic() + WAIT
    while not writer.has_failed and time.monotonic() < end:
        time.sleep(0.001)
    assert writer.take_written() == []
    with pytest.raises(CheckpointError):
        writer.wait()


def test_exception_waits_for_the_write(tmp_path: Path, trainer: Any) -> None:
    def fail() -> None:
        with _writer() as writer:
            writer.write(_stage(tmp_path, 1, trainer))
            threading.Timer(0.05, trainer.gate.set).start()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert newest(tmp_path) == tmp_path / "000001"


def test_failed_write_does_not_hide_an_exception(
    tmp_path: Path, trainer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    trainer.error = OSError(28, "No space left on device")
    trainer.gate.set()

    def fail() -> None:
        with _writer() as writer:
            writer.write(_stage(tmp_path, 1, trainer))
            raise ZeroDivisionError

    with caplog.at_level(logging.WARNING), pytest.raises(ZeroDivisionError):
        fail()
    [message] = caplog.messages
    assert message.startswith(f"{tmp_path}/000001 was not completed: checkpoint '{tmp_path}/000001' cannot be written")


def test_trainer_that_cannot_stage_saves_before_it_trains_on(tmp_path: Path) -> None:
    class Plain:
        def save(self, path: Path) -> None:
            assert threading.current_thread() is threading.main_thread()
            (path / "value").write_text("1")

    with _writer() as writer:
        writer.write(_stage(tmp_path, 1, Plain()))
    assert newest(tmp_path) == tmp_path / "000001"


def test_records_are_flushed_before_the_checkpoint_is_committed(tmp_path: Path, trainer: Any) -> None:
    trainer.gate.set()
    with _writer() as writer:
        writer.write(_stage(tmp_path, 1, trainer, flush_records=(tmp_path / "missing").rmdir))
        with pytest.raises(CheckpointError, match="No such file"):
            writer.wait()
