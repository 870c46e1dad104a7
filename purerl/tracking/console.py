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
    "policy/loss/policy": "loss",
    "policy/kl": "kl",
    "policy/entropy": "entropy",
    "rollout/length": "length",
    "time/tokens_per_second": "tokens/s",
}
_SECONDS_BETWEEN_LINES = 5.0


def line(record: Mapping[str, Any]) -> str:
    """The metrics of a step that a person follows, in one line.

    >>> line({"step": 3, "reward/mean": 0.5, "policy/kl": 0.00123, "time/tokens_per_second": 12345.6})
    'step 3  reward 0.500  kl 0.00123  tokens/s 1.23e+04'
    """
    shown = [f"{label} {_number(record[name])}" for name, label in _SHOWN.items() if name in record]
    return "  ".join([f"step {record['step']}", *shown])


def _number(value: float) -> str:
    return f"{value:.3f}" if 0.01 <= abs(value) < 1000 or value == 0 else f"{value:.3g}"


class Console:
    """Follows one run. In a terminal its last line is alive; evaluations stay as lines of their own."""

    def __init__(self, name: str, steps: int) -> None:
        self._rich = RichConsole(highlight=False)
        columns = (
            BarColumn(24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[now]}"),
        )
        self._progress = Progress(TextColumn(name), *columns, console=self._rich, disable=not self._rich.is_terminal)
        self._name = name
        self._task = self._progress.add_task(name, total=steps, now="")
        self._last = 0.0
        self._held_out: float | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def log(self, record: Mapping[str, Any]) -> None:
        """Show the step that is done."""
        evaluated = "eval/accuracy" in record
        self._progress.update(self._task, completed=record["step"], now=line(record))
        if evaluated or (not self._rich.is_terminal and time.monotonic() - self._last > _SECONDS_BETWEEN_LINES):
            self._last = time.monotonic()
            self._rich.print(f"{self._name}: {line(record)}", soft_wrap=True)
