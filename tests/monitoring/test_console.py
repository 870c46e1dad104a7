"""The console: plain lines without a terminal, and a live view in a terminal that no text can break."""

from __future__ import annotations

import io
import json
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

from purerl.monitoring.console.captured_output import captured_output
from purerl.monitoring.console.live import Console, _LiveView, format_record
from purerl.monitoring.console.terminal_text import printable, sparkline, split_cells
from purerl.monitoring.console.view import CURVE_LABELS, View

HOSTILE = "\x1b[2J\x1b]0;title\x07[red]\n[/]\u202e\r\x9b31m" + "好😀" * 300


def _record(step: int, **metrics: float) -> dict[str, Any]:
    return {"step": step, "reward/mean": step / 10, "time/step": 0.5, "time/generate": 0.3, **metrics}


def _terminal(width: int = 100, height: int = 40) -> RichConsole:
    return RichConsole(file=io.StringIO(), force_terminal=True, width=width, height=height, _environ={"TERM": "xterm"})


def _output(rich: RichConsole) -> str:
    return rich.file.getvalue()


# --- plain lines ------------------------------------------------------------------------------------------------


def test_first_and_last_step_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = iter(range(99))
    console = Console("a run", max_steps=3, clock=lambda: next(seconds) / 100)
    for step in range(4):
        console.log({"step": step, "reward/mean": step / 3})
        console.completions(step, [{"prompt": HOSTILE, "completion": HOSTILE, "reward": None}])
    console.close(failed=False)
    assert capsys.readouterr().out == (
        "a run: step 0/3  reward 0.000\na run: step 3/3  reward 1.000  elapsed 0:00  remaining 0:00\n"
    )


def test_a_line_has_everything_that_says_how_a_run_is_doing(capsys: pytest.CaptureFixture[str]) -> None:
    now = [100.0]
    console = Console("a run", max_steps=400, clock=lambda: now[0])
    for step in range(11):
        now[0] = 100.0 + 6 * step
        metrics = {"reward/mean": 0.5, "policy/learning_rate": 1e-6, "policy/approx_kl": 0.002}
        metrics |= {"time/trained_tokens_per_second": 4000.0, "time/sampled_tokens_per_second": 900.0}
        critic = {"critic/loss/value": 0.25, "critic/explained_variance": 0.75}
        console.log({"step": step, **(metrics | critic if step else {"eval/accuracy": 0.25})})
    console.close(failed=False)
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "a run: step 0/400  accuracy 0.250"
    assert last == (
        "a run: step 10/400  reward 0.500  approx_kl 0.002  critic_loss 0.250  explained_variance 0.750  lr 1e-06  "
        "trained_tokens/s 4,000  sampled_tokens/s 900  elapsed 1:00  remaining 39:00"
    )


def test_the_time_of_a_resumed_run_is_that_of_this_process(capsys: pytest.CaptureFixture[str]) -> None:
    now = iter([0.0, 0.0, 0.0, 10.0, 10.0, 10.0])
    console = Console("a run", max_steps=30, history=[_record(step) for step in range(10)], clock=lambda: next(now))
    console.log({"step": 10, "reward/mean": 0.5})
    console.log({"step": 11, "reward/mean": 0.5})
    console.close(failed=False)
    assert capsys.readouterr().out.splitlines()[-1] == ("a run: step 11/30  reward 0.500  elapsed 0:10  remaining 3:10")


def test_a_step_without_metrics_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console("a run", max_steps=1)
    console.log({"step": 0})
    console.log({"step": 1, "reward/mean": 1.0})
    console.close(failed=False)
    assert capsys.readouterr().out == "a run: step 1/1  reward 1.000  elapsed 0:00  remaining 0:00\n"


def test_warnings_are_not_captured_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    handlers = [*logging.getLogger().handlers]
    console = Console("a run", max_steps=3)
    assert logging.getLogger().handlers == handlers
    console.close(failed=False)


def test_terminal_without_utf8_gets_plain_lines() -> None:
    rich = RichConsole(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"), force_terminal=True)
    console = Console("a run", max_steps=1, rich=rich)
    console.log({"step": 0, "reward/mean": 1.0})
    console.close(failed=False)
    rich.file.flush()
    assert rich.file.buffer.getvalue() == b"a run: step 0/1  reward 1.000\n"


def test_closed_pipe_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        console = Console("a run", max_steps=1, note="resumed")
        console.log({"step": 0})
        console.close(failed=False)
        print("later output", flush=True)  # noqa: T201 - would raise BrokenPipeError too


# --- the live view ----------------------------------------------------------------------------------------------


def _view(**changes: Any) -> View:
    view = View("addition", max_steps=40, title="grpo, models/tiny", **changes)
    for step in range(11):
        view.update(
            _record(step, **{"eval/accuracy": 0.25, "time/tokens_per_second": 12345.0, "time/update": 0.1}),
            seconds=100 + step / 2,
        )
    view.rows = [
        {"prompt": "1+1=", "completion": "2", "reward": 1.0},
        {"prompt": "2+2=", "completion": HOSTILE, "reward": None},
    ]
    return view


def _drawn_lines(view: View, width: int = 100, height: int = 40) -> list[str]:
    rich = RichConsole(file=io.StringIO(), width=width, height=height, legacy_windows=False)
    rich.print(view)
    return [line.rstrip() for line in _output(rich).splitlines()]


def test_view_shows_progress_curves_time_completions_and_warnings() -> None:
    view = _view()
    view.warnings["something is odd"] += 2
    lines = _drawn_lines(view)
    assert lines[0] == "addition  grpo, models/tiny"
    assert lines[1].endswith("step 10 of 40   0:05 elapsed   0:15 remaining   2.000 steps/s   12,345 tokens/s")
    assert lines[3:5] == ["reward    1.000  ▁▂▂▃▄▅▅▆▇▇█", "accuracy  0.250  ▅▅▅▅▅▅▅▅▅▅▅"]
    assert re.fullmatch(r"seconds   0\.500  █{60}", lines[6])
    assert lines[7].strip() == "■ generate 0.300  ■ update 0.100  ■ other 0.100"
    assert lines[9].split() == ["reward", "prompt", "completion"]
    assert lines[10].split() == ["1.000", "1+1=", "2"]
    assert lines[11].split()[:2] == ["-", "2+2="]
    assert lines[-1] == "warning: something is odd  x2"


@pytest.mark.parametrize("width", [20, 41, 80, 200])
@pytest.mark.parametrize("height", [5, 20, 60])
def test_hostile_text_stays_in_its_cell_at_any_terminal_size(width: int, height: int) -> None:
    rich = _terminal(width, height)
    view = _view()
    view.warnings[HOSTILE] += 1
    rich.print(view)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", _output(rich))
    assert {char for char in plain if unicodedata.category(char)[0] == "C"} <= {"\n"}
    assert all(len(line) <= width for line in plain.splitlines())


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({"policy/loss/nll": 0.5}, ["loss 0.500"]),
        (
            {"policy/loss/preference": 0.5, "policy/accuracy": 0.75, "policy/margin": 0.25},
            ["loss 0.500", "pair_accuracy 0.750", "margin 0.250"],
        ),
        (
            {"policy/loss/labels": 0.5, "policy/desirable_reward": 0.25, "policy/undesirable_reward": -0.5},
            ["loss 0.500", "desirable_reward 0.250", "undesirable_reward -0.500"],
        ),
    ],
    ids=["demonstrations", "preferences", "labels"],
)
def test_training_without_rewards_shows_the_loss(metrics: dict[str, float], expected: list[str]) -> None:
    record = {"step": 1, "policy/grad_norm": 1.0, **metrics}
    assert format_record(record) == "  ".join(expected)
    view = View("chat", max_steps=9)
    view.update(record, seconds=1.0)
    assert [" ".join(line.split()[:2]) for line in _drawn_lines(view)[3:]] == expected


def test_view_of_a_resumed_run_shows_the_curves_of_earlier_steps() -> None:
    rich = _terminal()
    history = [_record(step, **{"eval/accuracy": 0.25, "policy/entropy": None}) for step in range(10)]  # null: NaN
    console = Console("a run", max_steps=40, note="one\ntwo", history=history, rich=rich)
    console.log(_record(10, **{"eval/accuracy": 0.25}))
    view = console._view
    console.close(failed=False)
    assert _output(rich).startswith("a run: one\na run: two\n")
    view.now += 30.0
    lines = _drawn_lines(view)
    assert lines[1].endswith("step 10 of 40   0:30 elapsed"), "elapsed since this process has resumed the run"
    assert lines[3:5] == ["reward    1.000  ▁▂▂▃▄▅▅▆▇▇█", "accuracy  0.250  ▅▅▅▅▅▅▅▅▅▅▅"]


def test_curves_leave_out_metrics_of_earlier_steps_that_were_not_finite() -> None:
    console = Console("a run", max_steps=40, history=[{"step": 0, "reward/mean": None}], rich=_terminal())
    console.log(_record(1))
    console.close(failed=False)
    assert _drawn_lines(console._view)[3].startswith("reward")


def test_view_without_records_can_be_drawn() -> None:
    assert _drawn_lines(View("new", max_steps=3))[:2][1].endswith("step 0 of 3")


def test_sampling_that_continues_while_the_trainer_trains_is_no_part_of_the_step() -> None:
    view = View("a run", max_steps=9)
    times = {"time/step": 2.0, "time/rollout": 0.5, "time/generate": 1.75, "time/update": 1.0}
    view.update({"step": 1, **times, "time/trainer_idle_fraction": 0.25}, seconds=1.0)
    assert _drawn_lines(view)[-1].split() == ["■", "rollout", "0.500", "■", "update", "1.000", "■", "other", "0.500"]


def test_conversation_is_shown_with_the_turns_of_the_model_and_the_answers() -> None:
    messages = [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "add(1, 1)"},
        {"role": "tool", "content": "2\x1b[2J"},
        {"role": "assistant", "content": "two"},
    ]
    console = Console("a run", max_steps=9, rich=_terminal(200, 60))
    row = {"prompt": "1+1?", "completion": "two", "reward": 1.0, "messages": json.dumps(messages)}
    console.completions(1, [row, row | {"completion": "alone", "messages": None}])
    console.close(failed=False)
    first, second = _drawn_lines(console._view)[-2:]
    assert first.split() == ["1.000", "1+1?", "add(1,", "1)", "[tool:", "2�[2J]", "two"]
    assert second.split() == ["1.000", "1+1?", "alone"]


def test_view_is_drawn_during_the_run_and_erased_at_the_end() -> None:
    rich = _terminal()
    console = Console("a run", max_steps=9, title="title", rich=rich)
    console.log(_record(0, **{"eval/accuracy": 0.5}))
    console.completions(0, [{"prompt": HOSTILE, "completion": "sampled", "reward": 1.0}])
    deadline = time.monotonic() + 10
    while "sampled" not in _output(rich) and time.monotonic() < deadline:
        time.sleep(0.05)
    warnings.warn("a warning [bold]", stacklevel=1)
    logging.getLogger("some.library").error("an error \x1b[31m")
    console.warn(1, "no_variance", "a warning of the run \x1b[31m")
    console.log(_record(1))
    console.close(failed=True)
    output = _output(rich)
    assert "warning: step 1, no_variance: a warning of the run �[31m\n" in output
    assert "sampled" in output
    assert "\x1b[2K" in output[output.rindex("title") :], "the last view is not erased"
    assert re.search(r"a run: step 1/9  reward 0\.100  elapsed \d:\d\d  remaining \d+:\d\d$", output.rstrip())
    assert re.search(r"warning: .*a warning \[bold\]", output)
    assert "warning: an error �[31m\n" in output
    assert output.count("\x1b[?25l") == output.count("\x1b[?25h"), "the cursor is still hidden"


@pytest.mark.parametrize("width", [2, 40, 100])
def test_view_leaves_two_columns_for_an_echoed_ctrl_c(width: int) -> None:
    rich = _terminal(width)
    console = Console("a run", max_steps=9, title="title " * 40, rich=rich)
    warnings.warn("a long warning " * 40, stacklevel=1)
    console.log(_record(0))
    console.completions(0, [{"prompt": HOSTILE, "completion": HOSTILE, "reward": 1.0}])
    with console._live_view.lock:
        console._live_view._draw()
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", _output(rich))
    console.close(failed=True)
    assert max(cell_len(line) for line in re.split("[\r\n]", drawn)) <= max(1, width - 2)


def test_drawing_uses_at_most_one_percent_of_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_seconds, pauses = iter([0.0, 0.02, 1.0, 1.001]), []  # one frame takes 20 ms, the next one 1 ms

    def wait(pause: float) -> bool:
        pauses.append(pause)
        return len(pauses) == 3

    monkeypatch.setattr("purerl.monitoring.console.live.time.thread_time", lambda: next(cpu_seconds))
    live_view = SimpleNamespace(_closed=SimpleNamespace(wait=wait), lock=threading.Lock(), _draw=lambda: None)
    _LiveView._redraw_until_closed(live_view)
    assert pauses == [0.0, pytest.approx(2.0), 0.5], "a pause is 100 times the CPU time of a frame, at least 0.5 s"


# --- formatting -------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.floats(), max_size=300), st.integers(1, 80))
@example([1.7976931348623157e308, -9.9792015476736e291], 2)
@example([1.7e308] * 9, 2)
def test_sparkline_fits_the_width_and_spans_all_heights(values: list[float], width: int) -> None:
    curve = sparkline(values, width)
    assert len(curve) == min(len(values), width)
    blocks = set(curve) - {" "}
    assert blocks <= set("▁▂▃▄▅▆▇█")
    assert blocks <= {"▅"} or {"▁", "█"} <= blocks


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), max_size=9), st.integers(1, 99))
def test_split_cells_sum_to_the_width(parts: list[float], width: int) -> None:
    cells = split_cells(parts, width)
    assert len(cells) == len(parts)
    assert min(cells, default=0) >= 0
    assert sum(cells) == (width if sum(parts) > 0 else 0)


@settings(deadline=None)
@given(st.text() | st.text(alphabet="\n\x85\u2028\u2029\x1ba"), st.integers(1, 50))
def test_printable_returns_one_line_of_bounded_length(text: str, max_length: int) -> None:
    line = printable(text, max_length)
    assert len(line) <= max_length
    assert not any(unicodedata.category(char)[0] == "C" for char in line)
    assert len(line.splitlines()) <= 1


def test_captured_output_gets_warnings_and_restores_handlers() -> None:
    library, messages = logging.getLogger("tests.not_propagating"), []
    handler = logging.StreamHandler(sys.stderr)
    library.propagate, library.handlers = False, [handler]
    showwarning = warnings.showwarning
    with captured_output(messages.append):
        library.warning("one\ntwo")
        library.info("nothing")
        logging.getLogger("tests.propagating").warning("three")
        warnings.warn("four", stacklevel=1)
    assert messages[:2] == ["one", "three"]
    assert messages[2].endswith("UserWarning: four")
    assert (library.handlers, warnings.showwarning) == ([handler], showwarning)
    library.propagate, library.handlers = True, []


def test_line_has_the_labels_of_the_curves_without_the_length() -> None:
    rates = {"time/trained_tokens_per_second": "trained_tokens/s", "time/sampled_tokens_per_second": "sampled_tokens/s"}
    record = dict.fromkeys([*CURVE_LABELS, "policy/learning_rate", *rates], 1.0)
    labels = [label for label in CURVE_LABELS.values() if label != "length"]
    assert format_record(record).split()[::2] == [*labels, "lr", *rates.values()]


def test_format_record_omits_other_metrics() -> None:
    assert format_record({"step": 1, "eval/accuracy": 1.0, "policy/grad_norm": 3.0}) == "accuracy 1.000"
