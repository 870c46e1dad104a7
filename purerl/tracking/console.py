"""The console: a view that is redrawn in a terminal, plain lines elsewhere. It is a tracker like any other."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole
from rich.constrain import Constrain
from rich.live import Live

from purerl.tracking.captured_output import captured_output
from purerl.tracking.terminal_text import format_number, printable
from purerl.tracking.view import View

__all__ = ["Console", "line"]

_SHOWN = {
    "eval/accuracy": "accuracy",
    "reward/mean": "reward",
    "policy/loss/nll": "loss",
    "policy/loss/preference": "loss",
    "policy/accuracy": "preferred",
    "policy/margin": "margin",
    "policy/approx_kl": "kl",
    "policy/entropy": "entropy",
    "time/tokens_per_second": "tokens/s",
}
_SECONDS_BETWEEN_LINES = 3.0
_SECONDS_BETWEEN_VIEWS = 0.5
_LONGEST = 500  # characters of a warning
_SHARE = 0.01  # of one core, that drawing may cost


def line(record: Mapping[str, Any]) -> str:
    """The metrics of a step that a person follows, in one line.

    >>> line({"step": 3, "reward/mean": 0.5, "policy/approx_kl": 0.00123, "time/tokens_per_second": 12345.6})
    'reward 0.500  kl 0.00123  tokens/s 12,346'
    """
    return "  ".join(f"{label} {format_number(record[name])}" for name, label in _SHOWN.items() if name in record)


class Console:
    """Follows one run: a view in a terminal, and lines that stay, a few seconds apart.

    In a terminal the lines are evaluations, and when the run is over, warnings. The first and the last step have a line
    wherever it is. A `note` about the run comes before all.
    """

    def __init__(
        self, name: str, steps: int, *, title: str = "", note: str | None = None, rich: RichConsole | None = None
    ) -> None:
        self._rich = rich or _Output(file=sys.stdout)
        self._view = View(name, steps, title)
        self._name, self._printed, self._last = name, float("-inf"), {}
        if note:
            self._say(f"{name}: {note}")
        utf8 = "utf" in self._rich.encoding.lower()
        self._drawing = _Drawing(self._view, self._rich) if utf8 and self._rich.is_terminal else None

    def log(self, record: Mapping[str, Any]) -> None:
        self._last = record
        if self._drawing:
            with self._drawing.lock:
                self._view.told(record, seconds=time.monotonic())
        worth = "eval/accuracy" in record or not self._drawing
        if worth and time.monotonic() - self._printed > _SECONDS_BETWEEN_LINES:
            self._print(record)

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        if self._drawing:
            with self._drawing.lock:
                self._view.rows = rows

    def close(self, *, failed: bool) -> None:
        if self._drawing:
            self._drawing.close()
        for warning, count in self._view.warnings.items():
            times = f"  x{count}" if count > 1 else ""
            self._say(f"warning: {printable(warning, _LONGEST)}{times}")
        if self._last:
            self._print(self._last)

    def _print(self, record: Mapping[str, Any]) -> None:
        self._printed, self._last = time.monotonic(), {}
        self._say(f"{self._name}: step {record['step']}  {line(record)}")

    def _say(self, text: str) -> None:
        self._rich.print(text, markup=False, highlight=False, soft_wrap=True)


class _Output(RichConsole):
    """Where nobody reads any more (`| head`), what else is said goes nowhere; Rich would end the run."""

    def on_broken_pipe(self) -> None:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), self.file.fileno())


class _Drawing:
    """Draws a view again and again, in a thread of its own, at the cost of a hundredth of a core at most."""

    def __init__(self, view: View, rich: RichConsole):
        self.lock = threading.RLock()
        self._view, self._rich, self._size = view, rich, rich.size
        self._live = Live(get_renderable=self._narrow, console=rich, auto_refresh=False, transient=True)
        self._over, self._held = threading.Event(), ExitStack()
        self._held.enter_context(captured_output(self._hear))
        self._held.enter_context(self._live)
        self._thread = threading.Thread(target=self._draw_on, name="purerl console", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._held.close()

    def _narrow(self) -> Constrain:
        """The view, beside which a terminal has room for the ^C that it echoes: no line is wrapped by it."""
        return Constrain(self._view, max(1, self._rich.width - 2))

    def _hear(self, text: str) -> None:
        self._view.warnings[text] += 1  # without the lock: drawing may itself be warned of something

    def _draw_on(self) -> None:
        pause = 0.0
        while not self._over.wait(pause):
            begin = time.thread_time()
            with self.lock:
                self._draw()
            pause = max(_SECONDS_BETWEEN_VIEWS, (time.thread_time() - begin) / _SHARE)

    def _draw(self) -> None:
        self._view.now = time.monotonic()
        if self._rich.size != self._size:  # lines that were wide are now wrapped: what is drawn is not where it was
            self._size = self._rich.size
            self._live.stop()
            self._rich.clear()
            self._live.start()
        self._live.refresh()
