"""The progress of an evaluation on stderr: a bar per data set in a terminal, otherwise a line every 30 seconds."""

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

__all__ = ["EvaluationProgress"]

_SECONDS_BETWEEN_LINES = 30.0


class EvaluationProgress:
    """Counts finished problems. A problem is finished when all of its `samples_per_prompt` completions are.

    `totals` is the number of problems of each data set. The object is the callback `on_completion` of `run_evaluation`:
    it is called with finished completions, the first time with none. Tokens per second are measured from the first
    call.
    """

    def __init__(
        self,
        totals: Mapping[str, int],
        samples_per_prompt: int,
        *,
        console: Console | None = None,
        seconds: float = _SECONDS_BETWEEN_LINES,
    ) -> None:
        self._totals, self._samples_per_prompt, self._seconds = totals, samples_per_prompt, seconds
        self._console = console or Console(file=sys.stderr)
        self._completions: Counter[str] = Counter()  # by problem
        self._finished: Counter[str] = Counter()  # by data set
        self._tokens, self._start, self._last_line = 0, 0.0, 0.0
        columns = [
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        ]
        self._bars = Progress(*columns, console=self._console, refresh_per_second=2, transient=True)
        self._tasks = {name: self._bars.add_task(name, total=total, rate="") for name, total in totals.items()}

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._bars.stop()

    def __call__(self, completions: Sequence[Completion]) -> None:
        now = time.monotonic()
        if not self._start:
            self._start = self._last_line = now
        problems = [completion.key.rpartition("/")[0] for completion in completions]
        self._completions.update(problems)
        for problem in dict.fromkeys(problems):
            if self._completions[problem] == self._samples_per_prompt:
                self._finished[_data_set(problem)] += 1
        self._tokens += sum(len(completion.tokens) for completion in completions)
        rate = f"{self._tokens / max(now - self._start, 1e-9):,.0f} tokens/s"
        for name in dict.fromkeys(map(_data_set, problems)):
            self._bars.update(self._tasks[name], completed=self._finished[name], rate=rate)
            if not self._console.is_terminal and now - self._last_line >= self._seconds:
                self._last_line = now
                text = f"{name}: {self._finished[name]:,} of {self._totals[name]:,} problems, {rate}"
                self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def _data_set(problem: str) -> str:
    return problem.rpartition("/")[0]
