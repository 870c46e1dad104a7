"""The console tracker: a live view in a terminal, plain lines of text elsewhere."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.segment import Segment

from purerl.monitoring.console.captured_output import captured_output
from purerl.monitoring.console.conversation import summarize_messages
from purerl.monitoring.console.messages import parse_messages
from purerl.monitoring.console.rich_text import printed_above, render_escaped
from purerl.monitoring.console.terminal_text import format_duration, format_number, printable
from purerl.monitoring.console.view import CURVE_LABELS, View

__all__ = ["LABELS", "Console", "format_metric", "format_record"]

LABELS = {name: label for name, label in CURVE_LABELS.items() if name != "rollout/length"}
LABELS |= {
    "policy/learning_rate": "lr",
    "time/trained_tokens_per_second": "trained_tokens/s",
    "time/sampled_tokens_per_second": "sampled_tokens/s",
}
"""The metrics in a line about a step, with their labels."""
_SECONDS_BETWEEN_LINES = 3.0
_SECONDS_BETWEEN_FRAMES = 0.5
_MAX_WARNING_LENGTH = 800  # characters
_MAX_CPU_FRACTION = 0.01  # of one core, for drawing the view


def format_record(record: Mapping[str, Any]) -> str:
    """Format the main metrics of a step as one line.

    >>> format_record({"step": 3, "reward/mean": 0.5, "policy/learning_rate": 1e-6, "policy/approx_kl": 0.00123})
    'reward 0.500  approx_kl 0.00123  lr 1e-06'
    """
    return "  ".join(
        f"{label} {format_metric(label, record[name])}" for name, label in LABELS.items() if name in record
    )


def format_metric(label: str, value: float) -> str:
    """The value of a metric with this label: rates per second as integers."""
    return f"{value:,.0f}" if label.endswith("/s") else format_number(value)


class Console:
    """Shows the progress of one run on stdout.

    In a terminal it draws a live view, and prints a line for steps with an evaluation. Elsewhere it prints a line for
    every step. A step is not printed if the last line is less than three seconds old. `close` erases the view, prints
    the warnings that were captured while the view was drawn, and prints the last step if it has no line yet.

    A line has the step and the number of steps, the main metrics, the time since the first record of this process, and
    the remaining time at the rate of the last steps, as soon as there is one.

    name       of the run
    max_steps  number of steps of the run
    title      text next to the name in the view, for example the algorithm and the model
    note       lines that are printed first
    history    records of earlier steps, which are part of the curves
    rich       the Rich console to print on; stdout if None
    clock      seconds from any fixed origin
    """

    def __init__(
        self,
        name: str,
        max_steps: int,
        *,
        title: str = "",
        note: str = "",
        history: Iterable[Mapping[str, Any]] = (),
        rich: RichConsole | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rich = rich or _StdoutConsole(file=sys.stdout)
        self._view, self._clock = View(name, max_steps, title), clock
        self._name, self._last_print_time, self._unprinted = name, float("-inf"), {}
        for record in history:
            self._view.add_to_curves(record)
        for line in note.splitlines():
            self._print(f"{name}: {line}")
        utf8 = "utf" in self._rich.encoding.lower()
        self._live_view = _LiveView(self._view, self._rich, clock) if utf8 and self._rich.is_terminal else None

    def log(self, record: Mapping[str, Any]) -> None:
        self._unprinted = record
        with self._live_view.lock if self._live_view else nullcontext():
            self._view.update(record, seconds=self._clock())
        should_print = not self._live_view or not record.keys().isdisjoint(("eval/accuracy", "validation/loss"))
        if should_print and self._clock() - self._last_print_time > _SECONDS_BETWEEN_LINES:
            self._print_record(record)

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        if self._live_view:
            shown = [_with_turns(row) for row in rows]
            with self._live_view.lock:
                self._view.rows = shown

    def evaluation_completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """The view shows the completions of the last step instead."""

    def warn(self, step: int, name: str, text: str) -> None:
        message = f"step {step}, {name}: {text}"
        if self._live_view:
            self._view.warnings[message] += 1  # printed when the view is closed
        else:
            self._print(f"warning: {printable(message, _MAX_WARNING_LENGTH)}")

    def close(self, *, failed: bool) -> None:
        if self._live_view:
            self._live_view.close()
        for warning, count in self._view.warnings.items():
            repeats = f"  x{count}" if count > 1 else ""
            self._print(f"warning: {printable(warning, _MAX_WARNING_LENGTH)}{repeats}")
        if self._unprinted:
            self._print_record(self._unprinted)

    def _print_record(self, record: Mapping[str, Any]) -> None:
        self._last_print_time, self._unprinted = self._clock(), {}
        if metrics := format_record(record):
            times = {"elapsed": self._view.elapsed, "remaining": self._view.remaining}
            known = [f"{label} {format_duration(seconds)}" for label, seconds in times.items() if seconds is not None]
            step = f"{self._name}: step {record['step']}/{self._view.max_steps}"
            self._print("  ".join([step, metrics, *(known if self._view.remaining is not None else [])]))

    def _print(self, text: str) -> None:
        self._rich.print(text, markup=False, highlight=False, soft_wrap=True)


def _with_turns(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """`row`; if it has a conversation, with all turns of the model and the answers to them as its completion."""
    if row.get("messages") is None:
        return row
    return {**row, "completion": summarize_messages(parse_messages(row["messages"]))}


class _StdoutConsole(RichConsole):
    """Escapes text. It discards output after the reader of a pipe closes it (`| head`); Rich exits the process."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        return render_escaped(self, renderable, options)

    def on_broken_pipe(self) -> None:
        with Path(os.devnull).open("wb") as devnull:
            os.dup2(devnull.fileno(), self.file.fileno())


class _LiveView:
    """Redraws a view from a background thread, which uses at most one percent of a core."""

    def __init__(self, view: View, rich: RichConsole, clock: Callable[[], float]):
        self.lock, self._clock = threading.RLock(), clock
        self._view, self._rich, self._size = view, rich, rich.size
        options = {"auto_refresh": False, "transient": True, "redirect_stdout": False, "redirect_stderr": False}
        self._live = Live(get_renderable=self._narrow_view, console=rich, **options)
        self._closed, self._contexts = threading.Event(), ExitStack()
        self._contexts.enter_context(captured_output(self._add_warning))
        self._contexts.enter_context(self._live)
        self._contexts.enter_context(printed_above(rich))
        self._thread = threading.Thread(target=self._redraw_until_closed, name="purerl console", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self._contexts.close()

    def _narrow_view(self) -> Constrain:
        """The view, two columns narrower than the terminal, so that an echoed ^C does not wrap a line."""
        return Constrain(self._view, max(1, self._rich.width - 2))

    def _add_warning(self, text: str) -> None:
        self._view.warnings[text] += 1  # takes no lock, because drawing itself may emit a warning

    def _redraw_until_closed(self) -> None:
        pause = 0.0
        while not self._closed.wait(pause):
            start = time.thread_time()
            with self.lock:
                self._draw()
            pause = max(_SECONDS_BETWEEN_FRAMES, (time.thread_time() - start) / _MAX_CPU_FRACTION)

    def _draw(self) -> None:
        self._view.now = self._clock()
        if self._rich.size != self._size:  # a resized terminal wraps old lines, so erasing by line count fails
            self._size = self._rich.size
            self._live.stop()
            self._rich.clear()
            self._live.start()
        self._live.refresh()
