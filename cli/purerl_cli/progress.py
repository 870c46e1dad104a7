"""How far an evaluation is: a bar on stderr in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from purerl.protocols import Completion

__all__ = ["Problems"]

_SECONDS_BETWEEN_LINES = 30.0


class Problems:
    """Counts the problems of each data set, `totals`, whose completions, `samples` of each, have all come.

    It is called with completions as they come, and first of all with none. Tokens a second are those of the completions
    that have come, over the time since then.
    """

    def __init__(
        self,
        totals: Mapping[str, int],
        samples: int,
        *,
        rich: Console | None = None,
        seconds: float = _SECONDS_BETWEEN_LINES,
    ) -> None:
        self._totals, self._samples, self._seconds = totals, samples, seconds
        self._rich = rich or Console(file=sys.stderr)
        self._come: Counter[str] = Counter()
        self._done: Counter[str] = Counter()
        self._tokens, self._begun, self._said = 0, 0.0, 0.0
        columns = [
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        ]
        self._bars = Progress(*columns, console=self._rich, refresh_per_second=2, transient=True)
        self._tasks = {name: self._bars.add_task(name, total=total, rate="") for name, total in totals.items()}

    def __enter__(self) -> Self:
        if self._rich.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._rich.is_terminal:
            self._bars.stop()

    def __call__(self, completions: Sequence[Completion]) -> None:
        now = time.monotonic()
        if not self._begun:
            self._begun = self._said = now
        problems = [one.key.rpartition("/")[0] for one in completions]
        self._come.update(problems)
        whole = [problem for problem in dict.fromkeys(problems) if self._come[problem] == self._samples]
        self._done.update(problem.rpartition("/")[0] for problem in whole)
        self._tokens += sum(len(one.tokens) for one in completions)
        rate = f"{self._tokens / max(now - self._begun, 1e-9):,.0f} tokens/s"
        for name in dict.fromkeys(problem.rpartition("/")[0] for problem in problems):
            self._bars.update(self._tasks[name], completed=self._done[name], rate=rate)
            if not self._rich.is_terminal and now - self._said >= self._seconds:
                self._said = now
                text = f"{name}: {self._done[name]:,} of {self._totals[name]:,} problems, {rate}"
                self._rich.print(text, markup=False, highlight=False, soft_wrap=True)
