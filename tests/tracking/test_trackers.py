"""Trackers: each against the suite, and what a run does with one that fails, prints, or draws random numbers."""

from __future__ import annotations

import json
import logging
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from attrs import define, field, frozen

from purerl.config.schema import RunConfig
from purerl.config.structure import read_toml
from purerl.errors import ConfigError
from purerl.loop import watch
from purerl.loop.train import train
from purerl.plugins import find, names
from purerl.protocols import RunInfo, Tracker
from purerl.testing import check_tracker
from purerl.tracking import library, mlflow, swanlab, tensorboard, trackio, wandb
from purerl.tracking.tracker_thread import TrackerThread
from purerl.tracking.trackers import Trackers
from tests.loop.small import fake

from . import shown

HERE = __name__
KINDS: Mapping[str, Callable[[Path], Any]] = {
    "mlflow": lambda folder: mlflow.Config(uri=f"file:{folder}"),
    "swanlab": lambda folder: swanlab.Config(mode="offline"),
    "tensorboard": lambda folder: tensorboard.Config(directory=str(folder)),
    "trackio": lambda folder: trackio.Config(),
    "wandb": lambda folder: wandb.Config(mode="offline"),
}


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where every library keeps what it would else keep at home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    if find_spec("trackio"):  # it reads its environment when it is imported, which another test may have done
        from trackio import utils
        from trackio.sqlite_storage import SQLiteStorage

        for module in (utils, sys.modules[SQLiteStorage.__module__]):
            monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "files")
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


def test_every_tracker_is_tested_here() -> None:
    assert sorted(KINDS) == names("tracker")


@pytest.mark.parametrize("kind", KINDS)
def test_it_takes_all_that_a_run_tells_and_shows_each_step_once(kind: str, offline: Path) -> None:
    config = KINDS[kind](offline)
    _installed(kind)
    build, show = find("tracker", kind).build, getattr(shown, kind)
    as_in_a_run = lambda subject: TrackerThread(partial(build, config, subject=subject))  # noqa: E731
    check_tracker(as_in_a_run, folder=offline, shown=lambda one: show(one, offline))
    assert any("[red]" in text and "long long" in text for text in _texts(offline)), "completions are kept as they are"


def _installed(kind: str) -> None:
    try:
        library.needs(kind, extra=kind)
    except ConfigError as error:
        pytest.skip(str(error))


def _texts(folder: Path) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path.read_bytes().decode(errors="replace").replace("&#91;", "[").replace("&#93;", "]") for path in files]


# --- the library that is not there ------------------------------------------------------------------------------


def test_a_missing_library_is_refused_before_anything_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        train(fake(trackers=(wandb.Config(),)), directory=tmp_path / "run")
    assert str(caught.value) == (
        "trackers.kind\n  got:  'wandb'\n  need: the library wandb, which is not installed\n"
        "  do:   pip install 'purerl[wandb]'"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("uri", [None, "sqlite:///runs.db", "file:runs", "runs"])
def test_mlflow_without_databases_is_refused_where_no_server_is_named(
    uri: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_mlflow(monkeypatch, whole=False)
    with pytest.raises(ConfigError) as caught:
        train(fake(trackers=(mlflow.Config(uri=uri),)), directory=tmp_path / "run")
    assert str(caught.value).splitlines() == [
        "trackers.uri",
        "  got:  " + ("nothing, and no MLFLOW_TRACKING_URI" if uri is None else repr(uri)),
        "  need: the address of a server, such as http://localhost:5000; mlflow-skinny alone keeps no runs",
        "  do:   name a server, or pip install mlflow for a database",
    ]
    assert not (tmp_path / "run").exists()


def test_mlflow_takes_a_server_and_all_of_it_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_mlflow(monkeypatch, whole=False)
    mlflow.check(mlflow.Config(uri="https://example.org"))
    mlflow.check(mlflow.Config(uri="databricks"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:5000")
    mlflow.check(mlflow.Config())
    _with_mlflow(monkeypatch, whole=True)
    mlflow.check(mlflow.Config(uri="sqlite:///runs.db"))
    mlflow.check(mlflow.Config())


def _with_mlflow(monkeypatch: pytest.MonkeyPatch, *, whole: bool) -> None:
    monkeypatch.setattr(mlflow, "needs", lambda library, *, extra: None)
    monkeypatch.setattr(mlflow, "_is_whole", lambda: whole)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.delenv(name, raising=False)


def test_a_folder_that_bears_the_librarys_name_is_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no_such_library").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="not installed"):
        library.needs("no_such_library", extra="wandb")


def test_two_of_a_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="trackers\n  got:  2 of the kind 'tests.tracking.test_trackers:Notes'"):
        train(fake(trackers=(NotesConfig(), NotesConfig())), directory=tmp_path / "run")


# --- what a run does with trackers ------------------------------------------------------------------------------


@frozen
class NotesConfig:
    """Settings of `Notes`: where it fails."""

    fails_at: tuple[str, ...] = ()


@define
class Notes:
    """A tracker that writes down what it is told, draws random numbers, prints, and fails where it is to fail."""

    Config = NotesConfig

    config: NotesConfig
    path: Path
    told: list[Any] = field(factory=list)

    @staticmethod
    def build(config: NotesConfig, *, subject: RunInfo) -> Tracker:
        """What makes one."""
        notes = Notes(config, subject.folder / "notes.json")
        notes.tell("first", subject.first)
        notes.tell("identity", subject.identity)
        notes.tell("steps", subject.settings["max_steps"])
        return notes

    def tell(self, what: str, value: Any) -> None:
        print("told", what)  # noqa: T201 - it is a tracker that does
        random.random()
        np.random.rand()
        torch.rand(1)
        if what in self.config.fails_at:
            raise OSError("the disk is full")
        self.told.append([what, value])
        with self.path.open("a") as file:
            file.write(json.dumps([what, value]) + "\n")

    def log(self, record: Mapping[str, Any]) -> None:
        self.tell("log", dict(record))

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self.tell("completions", [step, list(rows)])

    def close(self, *, failed: bool) -> None:
        self.tell("close", failed)


def _notes(directory: Path) -> list[Any]:
    path = directory / "trackers" / f"{HERE}.Notes" / "notes.json"
    return [json.loads(line) for line in path.read_text().splitlines()]


def _numbers(directory: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in lines]


def test_a_tracker_hears_the_settings_every_record_and_completions_with_every_checkpoint(tmp_path: Path) -> None:
    train(fake(trackers=(NotesConfig(),)), directory=tmp_path)
    notes = _notes(tmp_path)
    assert [what for what, _ in notes] == (
        ["first", "identity", "steps", "log", "log", "completions", "log", "log", "completions", "log", "close"]
    )
    assert [value for what, value in notes if what == "log"] == [
        json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()
    ]
    told = dict(notes)
    assert (told["first"], told["steps"], told["close"]) == (0, 4, False)
    step, rows = told["completions"]
    assert (step, len(rows)) == (4, 16)
    assert list(rows[0]) == ["prompt", "completion", "finish", "reward"]
    assert len({row["prompt"] for row in rows}) == 4


def _stop_in_the_fourth_step(config: Any, directory: Path) -> None:
    from purerl.loop import train as loop

    advance = loop.advance

    def dies(run: Any, state: Any, *others: Any) -> Any:
        if state.step == 3:
            raise KeyboardInterrupt
        return advance(run, state, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "advance", dies)
        with pytest.raises(KeyboardInterrupt):
            train(config, directory=directory)


def test_a_run_that_goes_on_is_the_same_run_to_its_trackers(tmp_path: Path) -> None:
    config = fake(trackers=(NotesConfig(),))
    _stop_in_the_fourth_step(config, tmp_path)
    train(config, directory=tmp_path)
    notes = _notes(tmp_path)
    assert [value["step"] for what, value in notes if what == "log"] == [0, 1, 2, 3, 2, 3, 4]
    assert [value for what, value in notes if what == "first"] == [0, 2]
    assert [value for what, value in notes if what == "close"] == [True, False]
    assert len({value for what, value in notes if what == "identity"}) == 1
    train(config, directory=tmp_path, fresh=True)
    assert dict(_notes(tmp_path))["identity"] != dict(notes)["identity"]


def test_a_run_that_has_begun_takes_other_trackers_and_is_the_same(tmp_path: Path) -> None:
    train(fake(), directory=tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "alone")
    _stop_in_the_fourth_step(fake(), tmp_path / "run")
    train(fake(trackers=(NotesConfig(),)), directory=tmp_path / "run")
    assert [value["step"] for what, value in _notes(tmp_path / "run") if what == "log"] == [2, 3, 4]
    assert _numbers(tmp_path / "run") == _numbers(tmp_path / "alone")
    assert read_toml(tmp_path / "run" / "config.toml", RunConfig).trackers == (NotesConfig(),)


@pytest.mark.parametrize("fails_at", [(), ("first",), ("log", "completions"), ("close",)])
def test_whatever_a_tracker_does_the_run_is_the_same(
    fails_at: tuple[str, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    train(fake(), directory=tmp_path / "run")
    alone = _numbers(tmp_path / "run")
    capsys.readouterr()
    with caplog.at_level(logging.WARNING):
        train(fake(trackers=(NotesConfig(fails_at),)), directory=tmp_path / "run", fresh=True)
    assert _numbers(tmp_path / "run") == alone
    assert "told" not in capsys.readouterr().out
    first, counted = f"tracker {HERE}:Notes: OSError: the disk is full; the run goes on", "could not be told 7 times"
    messages = [record.getMessage() for record in caplog.records if record.name == "purerl"]
    assert messages[:1] == ([first] if fails_at else [])
    assert messages[1:] == ([f"tracker {HERE}:Notes {counted}"] if "log" in fails_at else [])


def test_the_random_numbers_of_a_run_are_not_a_trackers_to_draw(tmp_path: Path) -> None:
    def draws() -> list[float]:
        return [random.random(), np.random.rand(), torch.rand(1).item()]

    def seed() -> None:
        random.seed(0), np.random.seed(0), torch.manual_seed(0)

    seed()
    alone = draws()
    subject = RunInfo("a run", "0", tmp_path, {"steps": 1}, first=0)
    trackers = Trackers()
    seed()
    trackers.add("notes", lambda: Notes.build(NotesConfig(("log",)), subject=subject))
    trackers.log({"step": 0})
    assert draws() == alone


@pytest.mark.parametrize("apart", [False, True])
def test_a_tracker_that_would_leave_does_not_end_the_run(apart: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), Trackers() as trackers:
        trackers.add("leaves", lambda: TrackerThread(_Leaves) if apart else _Leaves())
        trackers.log({"step": 0})
        trackers.completions(1, [{"prompt": ""}])
    assert [record.getMessage() for record in caplog.records] == [
        "tracker leaves: SystemExit: no network; the run goes on",
        "tracker leaves could not be told 3 times",
    ]


@define
class _Leaves:
    """A tracker that calls sys.exit whatever it is told."""

    def log(self, record: Mapping[str, Any]) -> None:
        sys.exit("no network")

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        sys.exit("no network")

    def close(self, *, failed: bool) -> None:
        sys.exit("no network")


def test_an_interruption_goes_through() -> None:
    def stop() -> Tracker:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Trackers().add("one", stop)


# --- one that hangs ----------------------------------------------------------------------------------------------


@frozen
class HangsConfig:
    """Nothing to set."""


@define
class Hangs:
    """A tracker that hangs in step 1 until it is `woken`, and fails in step 3."""

    Config = HangsConfig
    woken: ClassVar[Event] = Event()
    told: ClassVar[list[Any]] = []

    @staticmethod
    def build(config: HangsConfig, *, subject: RunInfo) -> Tracker:
        """What makes one."""
        Hangs.told.append("built")
        return Hangs()

    def log(self, record: Mapping[str, Any]) -> None:
        told = Hangs.told  # of the test that it began to hang in, though it may wake in the next
        if record["step"] == 1:
            Hangs.woken.wait()
        if record["step"] == 3:
            raise OSError("the disk is full")
        told.append(record["step"])

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        Hangs.told.append(f"completions {step}")

    def close(self, *, failed: bool) -> None:
        Hangs.told.append("closed")


@pytest.fixture
def hangs() -> Iterator[type[Hangs]]:
    Hangs.woken, Hangs.told = Event(), []
    yield Hangs
    Hangs.woken.set()  # no thread stays behind


def test_a_run_goes_on_without_a_tracker_that_hangs(
    hangs: type[Hangs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    train(fake(), directory=tmp_path / "run")
    alone = _numbers(tmp_path / "run")
    monkeypatch.setattr(watch, "TrackerThread", partial(TrackerThread, patience=0.5))
    begin = time.monotonic()
    with caplog.at_level(logging.WARNING):
        train(fake(trackers=(HangsConfig(), NotesConfig())), directory=tmp_path / "run", fresh=True)
    assert time.monotonic() - begin < 30
    assert hangs.told == ["built", 0]
    assert _numbers(tmp_path / "run") == alone
    assert [value["step"] for what, value in _notes(tmp_path / "run") if what == "log"] == [0, 1, 2, 3, 4]
    messages = [record.getMessage() for record in caplog.records if record.name == "purerl"]
    assert messages == [
        f"tracker {HERE}:Hangs: TimeoutError: it has not answered for 0.5 seconds; the run goes on",
        f"tracker {HERE}:Hangs could not be told 2 times",
    ]


def test_a_tracker_that_wakes_is_told_all_that_it_missed(hangs: type[Hangs]) -> None:
    tracker = TrackerThread(hangs, patience=1.0, most=4)
    tracker.log({"step": 0})
    with pytest.raises(TimeoutError, match=r"^it has not answered for 1 seconds$"):
        tracker.log({"step": 1})
    begin = time.monotonic()
    tracker.completions(2, [{"prompt": ""}])
    for step in (2, 3, 4):
        tracker.log({"step": step})
    with pytest.raises(TimeoutError):
        tracker.log({"step": 5})  # four wait already
    assert time.monotonic() - begin < 3.5, "to wait for each takes four seconds"
    hangs.woken.set()
    with pytest.raises(OSError, match="the disk is full"):  # of step 3; what comes after it is told all the same
        tracker.close(failed=False)
    assert hangs.told == [0, 1, "completions 2", 2, 4, "closed"]


def test_a_tracker_that_hangs_at_the_end_is_left(hangs: type[Hangs]) -> None:
    tracker = TrackerThread(hangs, patience=0.2)
    for ask in (lambda: tracker.log({"step": 1}), lambda: tracker.close(failed=False)):
        begin = time.monotonic()
        with pytest.raises(TimeoutError):
            ask()
        assert 0.2 <= time.monotonic() - begin < 5
    assert hangs.told == []


def test_completions_come_to_each_as_often_as_it_wants_them() -> None:
    heard: dict[str, list[int]] = {"often": [], "seldom": []}
    trackers = Trackers()
    for name, every in (("often", 1), ("seldom", 3)):
        trackers.add(name, partial(_Heard, heard[name]), every=every)
    for step in range(1, 7):
        trackers.completions(step, [{"prompt": ""}])
    assert heard == {"often": [1, 2, 3, 4, 5, 6], "seldom": [3, 6]}


@define
class _Heard:
    steps: list[int]

    def log(self, record: Mapping[str, Any]) -> None: ...

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self.steps.append(step)

    def close(self, *, failed: bool) -> None: ...
