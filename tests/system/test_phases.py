"""Lines about phases that take longer than two seconds."""

from __future__ import annotations

import queue
import threading

import pytest

from purerl.system import phases
from purerl.system.phases import Phase, first_line, phase, shown


class _Time:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def test_a_phase_has_a_line_after_two_seconds_and_every_thirty_and_at_its_end() -> None:
    time = _Time()
    lines = {}
    current = Phase("reading data", clock=time)
    assert current.pause == 2.0
    for second in range(76):
        time.now = 50.0 + second
        if second == 20:
            current(3, 40, "files")
        if (line := current.line()) is not None:
            lines[second] = line
    assert lines == {
        2: "reading data ...",
        32: "reading data: 3 of 40 files, 32.0 s",
        62: "reading data: 3 of 40 files, 1 min 2 s",
    }
    assert current.last_line() == "reading data: done in 1 min 15 s"


def test_the_first_line_has_the_progress_that_is_known() -> None:
    time = _Time()
    current = Phase("evaluating", clock=time)
    current(1200, 5000, "problems")
    time.now += 2.5
    assert current.line() == "evaluating: 1,200 of 5,000 problems, 2.5 s"


def test_progress_that_is_measured_is_asked_for_when_a_line_is_due() -> None:
    time, sizes = _Time(), iter(["", "1.5 GiB in 3 files", "2.5 GiB in 4 files"])
    current = Phase("saving", measure=lambda: next(sizes), clock=time)
    found = []
    for _ in range(3):
        time.now += 31.0
        assert current.pause == 0.0
        found.append(current.line())
    assert found == ["saving ...", "saving: 1.5 GiB in 3 files, 1 min 2 s", "saving: 2.5 GiB in 4 files, 1 min 33 s"]


def test_a_short_phase_has_no_line() -> None:
    time = _Time()
    current = Phase("reading data", clock=time)
    time.now += 1.9
    assert current.line() is None
    assert current.last_line() is None


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = {**phases.Phase.__init__.__kwdefaults__, "until_shown": 0.0}
    monkeypatch.setattr(phases.Phase.__init__, "__kwdefaults__", defaults)


@pytest.mark.usefixtures("at_once")
def test_lines_are_printed_while_the_block_runs_also_by_functions_inside_of_it() -> None:
    lines: queue.Queue[str] = queue.Queue()

    @phase("inner")
    def inner() -> str:
        return lines.get(timeout=60)

    with shown(lines.put):
        with phase("outer"):
            assert lines.get(timeout=60) == "outer ..."
            assert inner() == "inner ..."
            assert lines.get(timeout=60).startswith("inner: done in ")
        assert lines.get(timeout=60).startswith("outer: done in ")
    assert lines.empty()


@pytest.mark.usefixtures("at_once")
def test_a_block_that_fails_has_no_line_at_its_end() -> None:
    lines: queue.Queue[str] = queue.Queue()

    @phase("reading data")
    def fail() -> None:
        assert lines.get(timeout=60) == "reading data ..."
        raise KeyError

    with shown(lines.put), pytest.raises(KeyError):
        fail()
    assert lines.empty()


@pytest.mark.usefixtures("at_once")
def test_nothing_is_printed_outside_of_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with phase("reading data") as progress:
        progress(1, 2, "files")
    with shown():
        pass
    with phase("reading data"):
        pass
    assert capsys.readouterr() == ("", "")


def test_a_command_reports_imports_until_its_first_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "_SECONDS_BETWEEN_IMPORTS", 0.0)
    lines: queue.Queue[str] = queue.Queue()
    with shown(lines.put), first_line("purerl train", seconds=0.0):
        assert lines.get(timeout=60) == "purerl train has started"
        assert lines.get(timeout=60).startswith("purerl train: importing packages, 0.")
        (thread,) = (each for each in threading.enumerate() if each.name == "purerl first line")
        with phase("reading data"):
            pass
        thread.join(60)
        assert not thread.is_alive()


def test_a_command_says_that_it_has_started() -> None:
    lines: queue.Queue[str] = queue.Queue()
    with shown(lines.put), first_line("purerl train", seconds=0.0):
        assert lines.get(timeout=60) == "purerl train has started"
    with shown(lines.put), first_line("purerl train", seconds=600.0):
        pass
    assert lines.empty()


@pytest.mark.parametrize(
    ("variables", "is_printed"),
    [({}, True), ({"RANK": "0"}, True), ({"RANK": "1"}, False), ({"SLURM_PROCID": "2"}, False)],
)
def test_lines_are_printed_on_stderr_of_the_first_rank(
    variables: dict[str, str], is_printed: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with shown():
        phases._shows[-1]("reading data ...")
    assert capsys.readouterr() == ("", "purerl: reading data ...\n" if is_printed else "")
