"""The console: a progress bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

__all__ = ["Console", "line"]

_SHOWN = {
    "eval/accuracy": "accuracy",
    "reward/mean": "reward",
    "policy/kl": "kl",
    "policy/entropy": "entropy",
    "time/tokens_per_second": "tokens/s",
}
_SECONDS_BETWEEN_LINES = 3.0


def line(record: Mapping[str, Any]) -> str:
    """The metrics of a step that a person follows, in one line.

    >>> line({"step": 3, "reward/mean": 0.5, "policy/kl": 0.00123, "time/tokens_per_second": 12345.6})
    'reward 0.500  kl 0.00123  tokens/s 12,346'
    """
    return "  ".join(f"{label} {_number(record[name])}" for name, label in _SHOWN.items() if name in record)


def _number(value: float) -> str:
    size = abs(value)
    return f"{value:,.0f}" if size >= 1000 else f"{value:.3f}" if size >= 0.01 or value == 0 else f"{value:.3g}"


class Console:
    """Follows one run: a bar in a terminal, and lines that stay, a few seconds apart.

    In a terminal the lines are evaluations. The first and the last step have a line wherever it is.
    """

    def __init__(self, name: str, steps: int) -> None:
        self._rich = RichConsole(highlight=False)
        counts = (BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn())
        columns = (TextColumn(name), *counts, TextColumn("{task.fields[now]}"))
        self._progress = Progress(*columns, console=self._rich, disable=not self._rich.is_terminal)
        self._task = self._progress.add_task(name, total=steps, now="")
        self._name, self._printed, self._last = name, float("-inf"), {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._last:
            self._print(self._last)
        self._progress.stop()

    def note(self, text: str | None) -> None:
        """Show a line about the run, if there is one."""
        if text:
            self._rich.print(f"{self._name}: {text}", soft_wrap=True)

    def log(self, record: Mapping[str, Any]) -> None:
        """Show the step that is done."""
        self._last = record
        self._progress.update(self._task, completed=record["step"], now=line(record))
        worth = "eval/accuracy" in record or not self._rich.is_terminal
        if worth and time.monotonic() - self._printed > _SECONDS_BETWEEN_LINES:
            self._print(record)

    def _print(self, record: Mapping[str, Any]) -> None:
        self._printed, self._last = time.monotonic(), {}
        self._rich.print(f"{self._name}: step {record['step']}  {line(record)}", soft_wrap=True)
