"""Trackers in a separate thread: a tracker that hangs does not block the run."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, ClassVar

import pytest
from attrs import define, frozen

from purerl.loop.train import train
from purerl.monitoring.trackers import open as tracking
from purerl.monitoring.trackers.protocol import RunInfo, Tracker
from purerl.monitoring.trackers.tracker_thread import TrackerThread
from tests.loop.small import fake

from .sample_trackers import NotesConfig, read_notes, untimed_metrics


@frozen
class HangsConfig:
    """`Hangs` has no settings."""


@define
class Hangs:
    """A tracker that hangs in step 1 until `wake` is set, and fails in step 3."""

    Config = HangsConfig
    wake: ClassVar[Event] = Event()
    calls: ClassVar[list[Any]] = []

    @staticmethod
    def build(config: HangsConfig, *, run_info: RunInfo) -> Tracker:
        """Build the tracker."""
        Hangs.calls.append("built")
        return Hangs()

    def log(self, record: Mapping[str, Any]) -> None:
        calls = Hangs.calls  # the list of the test that made this call, even if `wake` is set by a later test
        if record["step"] == 1:
            Hangs.wake.wait()
        if record["step"] == 3:
            raise OSError("the disk is full")
        calls.append(record["step"])

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        Hangs.calls.append(f"completions {step}")

    def evaluation_completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        Hangs.calls.append(f"evaluation completions {step}")

    def close(self, *, failed: bool) -> None:
        Hangs.calls.append("closed")


@pytest.fixture
def hangs() -> Iterator[type[Hangs]]:
    Hangs.wake, Hangs.calls = Event(), []
    yield Hangs
    Hangs.wake.set()  # lets the thread finish


def test_run_continues_if_a_tracker_hangs(
    hangs: type[Hangs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    train(fake(), directory=tmp_path / "run")
    expected = untimed_metrics(tmp_path / "run")
    monkeypatch.setattr(tracking, "TrackerThread", partial(TrackerThread, timeout=0.5))
    start = time.monotonic()
    with caplog.at_level(logging.WARNING):
        train(fake(trackers=(HangsConfig(), NotesConfig())), directory=tmp_path / "run", fresh=True)
    assert time.monotonic() - start < 30
    assert hangs.calls == ["built", "evaluation completions 0", 0]
    assert untimed_metrics(tmp_path / "run") == expected
    assert [value["step"] for call, value in read_notes(tmp_path / "run") if call == "log"] == [0, 1, 2, 3, 4]
    messages = [record.getMessage() for record in caplog.records if record.name == "purerl"]
    assert messages == [
        f"tracker {__name__}:Hangs: TimeoutError: no response within 0.5 s; the run continues",
        f"tracker {__name__}:Hangs failed 2 times",
    ]


def test_pending_calls_are_executed_when_the_tracker_responds_again(hangs: type[Hangs]) -> None:
    tracker = TrackerThread(hangs, timeout=1.0, max_pending=4)
    tracker.log({"step": 0})
    with pytest.raises(TimeoutError, match=r"^no response within 1 s$"):
        tracker.log({"step": 1})
    start = time.monotonic()
    tracker.completions(2, [{"prompt": ""}])
    for step in (2, 3, 4):
        tracker.log({"step": step})
    with pytest.raises(TimeoutError):
        tracker.log({"step": 5})  # four calls are pending already
    assert time.monotonic() - start < 3.5, "waiting for each call would take four seconds"
    hangs.wake.set()
    with pytest.raises(OSError, match="the disk is full"):  # from step 3; the later calls are executed too
        tracker.close(failed=False)
    assert hangs.calls == [0, 1, "completions 2", 2, 4, "closed"]


def test_close_raises_if_the_tracker_hangs(hangs: type[Hangs]) -> None:
    tracker = TrackerThread(hangs, timeout=0.2)
    for call in (lambda: tracker.log({"step": 1}), lambda: tracker.close(failed=False)):
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            call()
        assert 0.2 <= time.monotonic() - start < 5
    assert hangs.calls == []
