"""The console: plain lines where there is no terminal, a view that nothing tears where there is one."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import threading
import time
import unicodedata
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console as RichConsole

from purerl.tracking.captured_output import captured_output
from purerl.tracking.console import Console, _Drawing, line
from purerl.tracking.terminal_text import printable, sparkline, split_cells
from purerl.tracking.view import View

HOSTILE = "\x1b[2J\x1b]0;title\x07[red]\n[/]\u202e\r\x9b31m" + "好😀" * 300


def _record(step: int, **metrics: float) -> dict[str, Any]:
    return {"step": step, "reward/mean": step / 10, "time/step": 0.5, "time/generate": 0.3, **metrics}


def _terminal(width: int = 100, height: int = 40) -> RichConsole:
    return RichConsole(file=io.StringIO(), force_terminal=True, width=width, height=height, _environ={"TERM": "xterm"})


def _text(rich: RichConsole) -> str:
    return rich.file.getvalue()


# --- plain lines --------------------------------------------------------------------------------------------------


def test_the_first_and_the_last_step_have_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console("a run", steps=3)
    for step in range(4):
        console.log({"step": step, "reward/mean": step / 3})
        console.completions(step, [{"prompt": HOSTILE, "completion": HOSTILE, "reward": None}])
    console.close(failed=False)
    assert capsys.readouterr().out == "a run: step 0  reward 0.000\na run: step 3  reward 1.000\n"


def test_without_a_terminal_warnings_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    before = [*logging.getLogger().handlers]
    console = Console("a run", steps=3)
    assert logging.getLogger().handlers == before
    console.close(failed=False)


def test_a_terminal_that_cannot_show_the_view_gets_lines() -> None:
    rich = RichConsole(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"), force_terminal=True)
    console = Console("a run", steps=1, rich=rich)
    console.log({"step": 0, "reward/mean": 1.0})
    console.close(failed=False)
    rich.file.flush()
    assert rich.file.buffer.getvalue() == b"a run: step 0  reward 1.000\n"


def test_where_nobody_reads_any_more_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        console = Console("a run", steps=1, note="going on")
        console.log({"step": 0})
        console.close(failed=False)
        print("what comes after", flush=True)  # noqa: T201 - it would fail as well


# --- the view -----------------------------------------------------------------------------------------------------


def _view(**changes: Any) -> View:
    view = View("addition", steps=40, title="grpo, models/tiny", **changes)
    for step in range(11):
        view.told(
            _record(step, **{"eval/accuracy": 0.25, "time/tokens_per_second": 12345.0, "time/update": 0.1}),
            seconds=100 + step / 2,
        )
    view.rows = [
        {"prompt": "1+1=", "completion": "2", "reward": 1.0},
        {"prompt": "2+2=", "completion": HOSTILE, "reward": None},
    ]
    return view


def _drawn(view: View, width: int = 100, height: int = 40) -> list[str]:
    rich = RichConsole(file=io.StringIO(), width=width, height=height, legacy_windows=False)
    rich.print(view)
    return [line.rstrip() for line in _text(rich).splitlines()]


def test_the_view_says_how_far_how_it_learns_what_it_costs_and_what_it_says() -> None:
    view = _view()
    view.warnings["something is odd"] += 2
    lines = _drawn(view)
    assert lines[0] == "addition  grpo, models/tiny"
    assert lines[1].endswith("step 10 of 40   0:05 gone   0:15 left   2.000 steps/s   12,345 tokens/s")
    assert lines[3:5] == ["reward    1.000  ▁▂▂▃▄▅▅▆▇▇█", "accuracy  0.250  ▅▅▅▅▅▅▅▅▅▅▅"]
    assert re.fullmatch(r"seconds   0\.500  █{60}", lines[6])
    assert lines[7].strip() == "■ generate 0.300  ■ update 0.100  ■ other 0.100"
    assert lines[9].split() == ["reward", "prompt", "completion"]
    assert lines[10].split() == ["1.000", "1+1=", "2"]
    assert lines[11].split()[:2] == ["-", "2+2="]
    assert lines[-1] == "warning: something is odd  x2"


@pytest.mark.parametrize("width", [20, 41, 80, 200])
@pytest.mark.parametrize("height", [5, 20, 60])
def test_nothing_that_is_said_leaves_its_cell_whatever_the_size(width: int, height: int) -> None:
    rich = _terminal(width, height)
    view = _view()
    view.warnings[HOSTILE] += 1
    rich.print(view)
    bare = re.sub(r"\x1b\[[0-9;]*m", "", _text(rich))
    assert {one for one in bare if unicodedata.category(one)[0] == "C"} <= {"\n"}
    assert all(len(line) <= width for line in bare.splitlines())


@pytest.mark.parametrize(
    ("metrics", "shown"),
    [
        ({"policy/loss/nll": 0.5}, ["loss 0.500"]),
        (
            {"policy/loss/preference": 0.5, "policy/accuracy": 0.75, "policy/margin": 0.25},
            ["loss 0.500", "preferred 0.750", "margin 0.250"],
        ),
    ],
    ids=["demonstrations", "preferences"],
)
def test_what_learns_without_a_reward_shows_its_loss(metrics: dict[str, float], shown: list[str]) -> None:
    record = {"step": 1, "policy/grad_norm": 1.0, **metrics}
    assert line(record) == "  ".join(shown)
    view = View("chat", steps=9)
    view.told(record, seconds=1.0)
    assert [" ".join(one.split()[:2]) for one in _drawn(view)[3:]] == shown


def test_an_empty_view_can_be_drawn() -> None:
    assert _drawn(View("new", steps=3))[:2][1].endswith("step 0 of 3")


def test_a_view_is_drawn_while_the_run_goes_on_and_gone_when_it_is_over() -> None:
    rich = _terminal()
    console = Console("a run", steps=9, title="title", rich=rich)
    console.log(_record(0, **{"eval/accuracy": 0.5}))
    console.completions(0, [{"prompt": HOSTILE, "completion": "said", "reward": 1.0}])
    end = time.monotonic() + 10
    while "said" not in _text(rich) and time.monotonic() < end:
        time.sleep(0.05)
    warnings.warn("a warning [bold]", stacklevel=1)
    logging.getLogger("some.library").error("an error \x1b[31m")
    console.log(_record(1))
    console.close(failed=True)
    text = _text(rich)
    assert "said" in text
    assert "\x1b[2K" in text[text.rindex("title") :], "the last view is erased"
    assert text.rstrip().endswith("a run: step 1  reward 0.100")
    assert re.search(r"warning: .*a warning \[bold\]", text)
    assert "warning: an error �[31m\n" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h"), "the cursor is there again"


@pytest.mark.parametrize("width", [2, 40, 100])
def test_beside_the_view_there_is_room_for_what_ctrl_c_echoes(width: int) -> None:
    rich = _terminal(width)
    console = Console("a run", steps=9, title="title " * 40, rich=rich)
    warnings.warn("a long warning " * 40, stacklevel=1)
    console.log(_record(0))
    console.completions(0, [{"prompt": HOSTILE, "completion": HOSTILE, "reward": 1.0}])
    with console._drawing.lock:
        console._drawing._draw()
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", _text(rich))
    console.close(failed=True)
    assert max(cell_len(line) for line in re.split("[\r\n]", drawn)) <= max(1, width - 2)


def test_drawing_takes_its_share_of_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, pauses = iter([0.0, 0.02, 1.0, 1.001]), []  # CPU time: a draw of 20 ms, and one of 1 ms

    def over(pause: float) -> bool:
        pauses.append(pause)
        return len(pauses) == 3

    monkeypatch.setattr("purerl.tracking.console.time.thread_time", lambda: next(seconds))
    drawing = SimpleNamespace(_over=SimpleNamespace(wait=over), lock=threading.Lock(), _draw=lambda: None)
    _Drawing._draw_on(drawing)
    assert pauses == [0.0, pytest.approx(2.0), 0.5], "one percent of a core, and at most two frames a second"


# --- pieces -------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.floats(), max_size=300), st.integers(1, 80))
@example([1.7976931348623157e308, -9.9792015476736e291], 2)
@example([1.7e308] * 9, 2)
def test_a_sparkline_fits_and_shows_least_and_greatest(values: list[float], width: int) -> None:
    curve = sparkline(values, width)
    assert len(curve) == min(len(values), width)
    known = set(curve) - {" "}
    assert known <= set("▁▂▃▄▅▆▇█")
    assert known <= {"▅"} or {"▁", "█"} <= known


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), max_size=9), st.integers(1, 99))
def test_shares_fill_the_bar(parts: list[float], width: int) -> None:
    cells = split_cells(parts, width)
    assert len(cells) == len(parts)
    assert min(cells, default=0) >= 0
    assert sum(cells) == (width if sum(parts) > 0 else 0)


@settings(deadline=None)
@given(st.text() | st.text(alphabet="\n\x85\u2028\u2029\x1ba"), st.integers(1, 50))
def test_what_is_printable_is_one_line_of_bounded_length(text: str, most: int) -> None:
    shown = printable(text, most)
    assert len(shown) <= most
    assert not any(unicodedata.category(one)[0] == "C" for one in shown)
    assert len(shown.splitlines()) <= 1


def test_what_is_logged_is_overheard_and_everything_is_as_before_afterwards() -> None:
    library, heard = logging.getLogger("tests.loud"), []
    loud = logging.StreamHandler(sys.stderr)
    library.propagate, library.handlers = False, [loud]
    shown = warnings.showwarning
    with captured_output(heard.append):
        library.warning("one\ntwo")
        library.info("nothing")
        logging.getLogger("tests.plain").warning("three")
        warnings.warn("four", stacklevel=1)
    assert heard[:2] == ["one", "three"]
    assert heard[2].endswith("UserWarning: four")
    assert (library.handlers, warnings.showwarning) == ([loud], shown)
    library.propagate, library.handlers = True, []


def test_a_line_has_what_a_person_follows() -> None:
    assert line({"step": 1, "eval/accuracy": 1.0, "policy/grad_norm": 3.0}) == "accuracy 1.000"
