"""The progress of an evaluation on stderr: a bar per data set in a terminal, otherwise a line every 30 seconds."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from purerl.monitoring.console.rich_text import printed_above

if TYPE_CHECKING:
    from purerl.rollouts.types import Group

__all__ = ["EvaluationProgress"]

_SECONDS_BETWEEN_LINES = 30.0


class EvaluationProgress:
    """Counts finished problems; `totals` is the number of problems of each data set.

    The object is the callback `on_group` of `run_evaluation`. Tokens per second are measured from the start of the
    block.
    """

    def __init__(
        self,
        totals: Mapping[str, int],
        *,
        console: Console | None = None,
        seconds: float = _SECONDS_BETWEEN_LINES,
    ) -> None:
        self._totals, self._seconds = totals, seconds
        self._console = console or Console(file=sys.stderr)
        self._finished: Counter[str] = Counter()  # by data set
        self._tokens, self._start, self._last_line = 0, 0.0, 0.0
        columns = [
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}", markup=False),
            TimeRemainingColumn(),
        ]
        options = {"refresh_per_second": 2, "transient": True, "redirect_stdout": False, "redirect_stderr": False}
        self._bars, self._contexts = Progress(*columns, console=self._console, **options), ExitStack()
        self._tasks = {name: self._bars.add_task(name, total=total, rate="") for name, total in totals.items()}

    def __enter__(self) -> Self:
        self._start = self._last_line = time.monotonic()
        if self._console.is_terminal:
            self._contexts.enter_context(self._bars)
            self._contexts.enter_context(printed_above(self._console))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._contexts.close()

    def __call__(self, name: str, group: Group) -> None:
        now = time.monotonic()
        self._finished[name] += 1
        self._tokens += sum(sum(trajectory.fields["action"]) for trajectory in group.trajectories)
        rate = f"{self._tokens / max(now - self._start, 1e-9):,.0f} tokens/s"
        self._bars.update(self._tasks[name], completed=self._finished[name], rate=rate)
        if not self._console.is_terminal and now - self._last_line >= self._seconds:
            self._last_line = now
            text = f"{name}: {self._finished[name]:,} of {self._totals[name]:,} problems, {rate}"
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
