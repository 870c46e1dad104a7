"""Trackers: each one passes the conformance suite, and no failure of a tracker changes or stops a run."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from purerl.config.schema import RunConfig
from purerl.config.structure import read_toml
from purerl.errors import ConfigError
from purerl.loop.train import train
from purerl.monitoring.trackers import library, mlflow, swanlab, tensorboard, trackio, wandb
from purerl.monitoring.trackers.protocol import Tracker
from purerl.monitoring.trackers.tracker_thread import TrackerThread
from purerl.monitoring.trackers.trackers import Trackers
from purerl.plugins import find, names
from purerl.system.installation import install_command
from purerl.testing import check_tracker
from tests.loop.small import fake

from . import stored_metrics
from .sample_trackers import MODULE, NotesConfig, read_notes, untimed_metrics

KINDS: Mapping[str, Callable[[Path], Any]] = {
    "mlflow": lambda folder: mlflow.Config(uri=f"file:{folder}"),
    "swanlab": lambda folder: swanlab.Config(mode="offline"),
    "tensorboard": lambda folder: tensorboard.Config(directory=str(folder)),
    "trackio": lambda folder: trackio.Config(),
    "wandb": lambda folder: wandb.Config(mode="offline"),
}


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in which every library stores the files that it would otherwise store in the home directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    if find_spec("trackio"):  # reads its environment when it is imported, possibly by an earlier test
        from trackio import utils
        from trackio.sqlite_storage import SQLiteStorage

        for module in (utils, sys.modules[SQLiteStorage.__module__]):
            monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "files")
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


def test_every_tracker_has_a_conformance_test() -> None:
    assert sorted(KINDS) == names("tracker")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_tracker_accepts_all_records_and_stores_each_step_once(kind: str, offline: Path) -> None:
    config = KINDS[kind](offline)
    _skip_if_missing(kind)
    build, read = find("tracker", kind).build, getattr(stored_metrics, kind)
    build_in_thread = lambda run_info: TrackerThread(partial(build, config, run_info=run_info), timeout=120.0)  # noqa: E731
    read_warnings = getattr(stored_metrics, f"warnings_of_{kind}")
    check_tracker(
        build_in_thread,
        folder=offline,
        shown=lambda run_info: read(run_info, offline),
        shown_warnings=lambda run_info: read_warnings(run_info, offline),
    )
    contents = _file_contents(offline)
    assert any("[red]" in content and "long long" in content for content in contents), "completions are changed"


def _skip_if_missing(kind: str) -> None:
    try:
        library.require_library(kind, extra=kind)
    except ConfigError as error:
        pytest.skip(str(error))


def _file_contents(folder: Path) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path.read_bytes().decode(errors="replace").replace("&#91;", "[").replace("&#93;", "]") for path in files]


# --- libraries that are not installed ---------------------------------------------------------------------------


def test_missing_library_is_refused_before_the_run_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        train(fake(trackers=(wandb.Config(),)), directory=tmp_path / "run")
    assert str(caught.value) == (
        "trackers.kind\n  got:  'wandb'\n  need: the library wandb, which is not installed\n"
        f"  do:   {install_command('wandb')}"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("uri", [None, "sqlite:///runs.db", "file:runs", "runs"])
def test_mlflow_skinny_without_a_server_is_refused(
    uri: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pretend_mlflow(monkeypatch, is_full=False)
    with pytest.raises(ConfigError) as caught:
        train(fake(trackers=(mlflow.Config(uri=uri),)), directory=tmp_path / "run")
    assert str(caught.value).splitlines() == [
        "trackers.uri",
        "  got:  " + ("None, and MLFLOW_TRACKING_URI is not set" if uri is None else repr(uri)),
        "  need: the URL of an MLflow server, such as http://localhost:5000; mlflow-skinny cannot store runs itself",
        "  do:   set uri to a server, or pip install mlflow to store runs in a database",
    ]
    assert not (tmp_path / "run").exists()


def test_mlflow_skinny_accepts_a_server_and_full_mlflow_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend_mlflow(monkeypatch, is_full=False)
    mlflow.check(mlflow.Config(uri="https://example.org"))
    mlflow.check(mlflow.Config(uri="databricks"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:5000")
    mlflow.check(mlflow.Config())
    _pretend_mlflow(monkeypatch, is_full=True)
    mlflow.check(mlflow.Config(uri="sqlite:///runs.db"))
    mlflow.check(mlflow.Config())


def _pretend_mlflow(monkeypatch: pytest.MonkeyPatch, *, is_full: bool) -> None:
    monkeypatch.setattr(mlflow, "require_library", lambda library, *, extra: None)
    monkeypatch.setattr(mlflow, "_has_full_mlflow", lambda: is_full)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.delenv(name, raising=False)


def test_a_directory_with_the_name_of_a_library_is_not_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no_such_library").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="not installed"):
        library.require_library("no_such_library", extra="wandb")


def test_two_trackers_of_one_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="trackers\n  got:  2 of the kind 'tests.monitoring.sample_trackers:Notes'"):
        train(fake(trackers=(NotesConfig(), NotesConfig())), directory=tmp_path / "run")


# --- calls of a run to its trackers -----------------------------------------------------------------------------


def test_tracker_gets_settings_all_records_and_completions_with_checkpoints(tmp_path: Path) -> None:
    train(fake(trackers=(NotesConfig(),)), directory=tmp_path)
    notes = read_notes(tmp_path)
    evaluated = ["completions", "evaluation_completions", "log"]
    assert [call for call, _ in notes] == (
        ["first", "identity", "steps", *evaluated[1:], "log", *evaluated, "log", *evaluated, "close"]
    )
    assert [value for call, value in notes if call == "log"] == [
        json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()
    ]
    last_values = dict(notes)
    assert (last_values["first"], last_values["steps"], last_values["close"]) == (0, 4, False)
    step, rows = last_values["completions"]
    assert (step, len(rows)) == (4, 16)
    assert list(rows[0]) == ["prompt", "completion", "finish", "ground_truth", "reward", "reward/digits"]
    assert len({row["prompt"] for row in rows}) == 4
    evaluations = [value for call, value in notes if call == "evaluation_completions"]
    assert [(step, len(rows)) for step, rows in evaluations] == [(0, 16), (2, 16), (4, 16)]
    (_, rows), *_ = evaluations
    assert list(rows[0]) == [
        "data_set", "index", "attempt", "prompt", "completion", "tokens", "finish", "answer", "correct", "reward",
        "ground_truth", "reward/digits",
    ]  # fmt: skip


def _interrupt_in_the_fourth_step(config: Any, directory: Path) -> None:
    from purerl.loop import remaining_steps as loop

    advance = loop.advance

    def interrupted_advance(run: Any, state: Any, *args: Any) -> Any:
        if state.step == 3:
            raise KeyboardInterrupt
        return advance(run, state, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "advance", interrupted_advance)
        with pytest.raises(KeyboardInterrupt):
            train(config, directory=directory)


def test_resumed_run_has_the_same_identity_and_a_fresh_run_another(tmp_path: Path) -> None:
    config = fake(trackers=(NotesConfig(),))
    _interrupt_in_the_fourth_step(config, tmp_path)
    train(config, directory=tmp_path)
    notes = read_notes(tmp_path)
    assert [value["step"] for call, value in notes if call == "log"] == [0, 1, 2, 3, 2, 3, 4]
    assert [value[0] for call, value in notes if call == "evaluation_completions"] == [0, 2, 2, 4]
    assert [value for call, value in notes if call == "first"] == [0, 2]
    assert [value for call, value in notes if call == "close"] == [True, False]
    assert len({value for call, value in notes if call == "identity"}) == 1
    train(config, directory=tmp_path, fresh=True)
    assert dict(read_notes(tmp_path))["identity"] != dict(notes)["identity"]


def test_trackers_can_be_added_on_resume_and_do_not_change_metrics(tmp_path: Path) -> None:
    train(fake(), directory=tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "without_trackers")
    _interrupt_in_the_fourth_step(fake(), tmp_path / "run")
    train(fake(trackers=(NotesConfig(),)), directory=tmp_path / "run")
    assert [value["step"] for call, value in read_notes(tmp_path / "run") if call == "log"] == [2, 3, 4]
    assert untimed_metrics(tmp_path / "run") == untimed_metrics(tmp_path / "without_trackers")
    assert read_toml(tmp_path / "run" / "config.toml", RunConfig).trackers == (NotesConfig(),)


@pytest.fixture(scope="module")
def untracked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The directory of a run without trackers, and its metrics. The fake engine draws weights from the directory."""
    run = tmp_path_factory.mktemp("untracked") / "run"
    train(fake(), directory=run)
    return run, untimed_metrics(run)


@pytest.mark.parametrize("fails_at", [(), ("first",), ("log", "completions"), ("close",)])
def test_failing_tracker_does_not_change_metrics(
    fails_at: tuple[str, ...],
    untracked: tuple[Path, Any],
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, expected = untracked
    capsys.readouterr()
    with caplog.at_level(logging.WARNING):
        train(fake(trackers=(NotesConfig(fails_at),)), directory=run, fresh=True)
    assert untimed_metrics(run) == expected
    assert "output of the tracker" not in capsys.readouterr().out
    first_failure = f"tracker {MODULE}:Notes: OSError: the disk is full; the run continues"
    messages = [record.getMessage() for record in caplog.records if record.name == "purerl"]
    assert messages[:1] == ([first_failure] if fails_at else [])
    assert messages[1:] == ([f"tracker {MODULE}:Notes failed 7 times"] if "log" in fails_at else [])


@pytest.mark.parametrize("in_thread", [False, True])
def test_tracker_that_calls_sys_exit_does_not_stop_the_run(in_thread: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), Trackers() as trackers:
        trackers.add("exits", lambda: TrackerThread(_Exits) if in_thread else _Exits())
        trackers.log({"step": 0})
        trackers.completions(1, [{"prompt": ""}])
        trackers.evaluation_completions(1, [{"prompt": ""}])
    assert [record.getMessage() for record in caplog.records] == [
        "tracker exits: SystemExit: no network; the run continues",
        "tracker exits failed 4 times",
    ]


@define
class _Exits:
    """A tracker that calls sys.exit in every call."""

    def log(self, record: Mapping[str, Any]) -> None:
        sys.exit("no network")

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        sys.exit("no network")

    def evaluation_completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        sys.exit("no network")

    def close(self, *, failed: bool) -> None:
        sys.exit("no network")


@pytest.mark.parametrize("in_thread", [False, True])
def test_warnings_reach_the_trackers_that_support_them(in_thread: bool, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[tuple[int, str, str]] = []

    @define
    class Warned(_Records):
        def warn(self, step: int, name: str, text: str) -> None:
            calls.append((step, name, text))

    with caplog.at_level(logging.WARNING), Trackers() as trackers:
        for name, kind in (("plain", _Records), ("warned", Warned)):
            build = partial(kind, [])
            trackers.add(name, partial(TrackerThread, build) if in_thread else build)
        trackers.warn(7, "no_variance", "text")
    assert (calls, caplog.records) == ([(7, "no_variance", "text")], [])


def test_keyboard_interrupt_is_raised() -> None:
    def interrupt() -> Tracker:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Trackers().add("interrupted", interrupt)


def test_trackers_get_no_metrics_without_a_value() -> None:
    trackers, tracker = Trackers(), _Records()
    trackers.add("records", lambda: tracker, history=[{"step": 1, "reward/mean": None}])
    trackers.log({"step": 2, "reward/mean": None, "reward/max": 1.0})
    assert tracker.records == [{"step": 1}, {"step": 2, "reward/max": 1.0}]


def test_each_tracker_gets_completions_at_its_own_interval() -> None:
    steps: dict[str, list[int]] = {"every step": [], "every third step": []}
    trackers = Trackers()
    for name, every in (("every step", 1), ("every third step", 3)):
        trackers.add(name, partial(_Records, steps[name]), every=every)
    for step in range(1, 7):
        trackers.completions(step, [{"prompt": ""}])
    assert steps == {"every step": [1, 2, 3, 4, 5, 6], "every third step": [3, 6]}


@define
class _Records:
    steps: list[int] = field(factory=list)
    records: list[Mapping[str, Any]] = field(factory=list)

    def log(self, record: Mapping[str, Any]) -> None:
        self.records.append(record)

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self.steps.append(step)

    def evaluation_completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None: ...

    def close(self, *, failed: bool) -> None: ...
