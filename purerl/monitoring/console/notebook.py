"""The console of a run in a notebook: a progress bar and a table of the last steps, which are redrawn in place."""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib import import_module
from typing import Any

from purerl.monitoring.console.live import LABELS, format_metric
from purerl.monitoring.console.terminal_text import format_duration, printable
from purerl.monitoring.console.view import View

__all__ = ["NotebookConsole", "is_notebook"]

_ROWS = 10
_SECONDS_BETWEEN_FRAMES = 0.5
_MAX_WARNING_LENGTH = 800  # characters

Show = Callable[[str], None]


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook, which shows HTML."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def _display() -> Show:
    """A function that shows HTML in the output of the cell, and later in place of what it has shown."""
    library = import_module("IPython.display")  # every kernel has it, so it is no dependency
    handle = library.display(library.HTML(""), display_id=True)
    return lambda html: handle.update(library.HTML(html))


class NotebookConsole:
    """A tracker that shows the progress of one run below the cell that does it.

    The bar has the steps, the elapsed and the remaining time. The table has the last ten steps, with a column for each
    of the metrics that lines of a console have. Warnings are below it. It is redrawn at most twice a second.

    show   shows HTML in place of the HTML before
    clock  seconds from any fixed origin
    """

    def __init__(
        self,
        name: str,
        max_steps: int,
        *,
        title: str = "",
        note: str = "",
        history: Iterable[Mapping[str, Any]] = (),
        show: Show | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._view, self._title, self._note = View(name, max_steps, title), title, note
        self._records: deque[Mapping[str, Any]] = deque(history, maxlen=_ROWS)
        self._warnings: Counter[str] = Counter()
        self._show, self._clock, self._last_frame = show or _display(), clock, float("-inf")
        self._draw()

    def log(self, record: Mapping[str, Any]) -> None:
        if self._records and self._records[-1]["step"] == record["step"]:  # of a run that is resumed
            self._records.pop()
        self._records.append(record)
        self._view.update(record, seconds=self._clock())
        if self._clock() - self._last_frame > _SECONDS_BETWEEN_FRAMES:
            self._draw()

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """The report has them."""

    def evaluation_completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """The report has them."""

    def warn(self, step: int, name: str, text: str) -> None:
        self._warnings[f"step {step}, {name}: {text}"] += 1
        self._draw()

    def close(self, *, failed: bool) -> None:
        self._draw(ended="failed" if failed else "done")

    def _draw(self, ended: str = "") -> None:
        self._last_frame = self._clock()
        self._show("".join([*self._progress(ended), self._table(), *self._shown_warnings()]))

    def _progress(self, ended: str) -> Iterable[str]:
        view = self._view
        step = view.record.get("step", 0)
        times = {"elapsed": view.elapsed, "remaining": None if ended else view.remaining}
        facts = [f"{format_duration(seconds)} {label}" for label, seconds in times.items() if seconds is not None]
        facts = [f"step {step:,} of {view.max_steps:,}", *facts, *([ended] if ended else [])]
        yield f"<b>{escape(view.name)}</b> {escape(self._title)}<br>"
        yield from (f"{escape(line)}<br>" for line in self._note.splitlines())
        yield f'<progress value="{step}" max="{view.max_steps}"></progress> {", ".join(facts)}'

    def _table(self) -> str:
        columns = [name for name in LABELS if any(name in record for record in self._records)]
        head = "".join(f"<th>{escape(text)}</th>" for text in ("step", *(LABELS[name] for name in columns)))
        rows = "".join(
            f"<tr><td>{record['step']:,}</td>{''.join(_cell(name, record.get(name)) for name in columns)}</tr>"
            for record in reversed(self._records)
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if self._records else ""

    def _shown_warnings(self) -> Iterable[str]:
        for text, count in self._warnings.items():
            repeats = f" x{count}" if count > 1 else ""
            yield f"<p>warning: {escape(printable(text, _MAX_WARNING_LENGTH))}{repeats}</p>"


def _cell(name: str, value: float | None) -> str:
    return f"<td>{'' if value is None else format_metric(LABELS[name], value)}</td>"
