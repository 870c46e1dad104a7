"""The live view of a run in a terminal: progress, curves, time by phase, completions and warnings."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import define, field
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from purerl.monitoring.console.phases import step_phases
from purerl.monitoring.console.terminal_text import format_duration, format_number, printable, sparkline, split_cells

__all__ = ["CURVE_LABELS", "View"]

CURVE_LABELS = {
    "reward/mean": "reward",
    "eval/accuracy": "accuracy",
    "validation/loss": "validation_loss",
    "validation/accuracy": "validation_accuracy",
    "policy/loss/nll": "loss",
    "policy/loss/preference": "loss",
    "policy/loss/labels": "loss",
    "policy/accuracy": "pair_accuracy",
    "policy/margin": "margin",
    "policy/desirable_reward": "desirable_reward",
    "policy/undesirable_reward": "undesirable_reward",
    "rollout/length": "length",
    "policy/entropy": "entropy",
    "policy/approx_kl": "approx_kl",
    "critic/loss/value": "critic_loss",
    "critic/explained_variance": "explained_variance",
}
"""The metrics that the view shows as curves, with their labels."""
_PHASE_COLORS = {
    "rollout": "cyan",
    "generate": "cyan",
    "reward": "yellow",
    "score": "blue",
    "advantage": "white",
    "update": "magenta",
    "sync": "green",
    "other": "bright_black",
}
_MAX_CURVE_POINTS = 512
_RATE_WINDOW = 30  # steps over which steps/s is computed
_MAX_TEXT_LENGTH = 400  # characters of a prompt or completion that are formatted
_RESERVED_LINES = 14  # height of everything except completions and warnings


@define
class View:
    """A Rich renderable with the state of a run.

    Times are in seconds from any fixed origin, the same one in every call.

    name       of the run
    max_steps  number of steps of the run
    title      text next to the name
    now        current time
    record     metrics of the last step
    rows       completions to show: mappings with prompt, completion and reward
    warnings   number of occurrences by message; the last three are shown
    """

    name: str
    max_steps: int
    title: str = ""
    now: float = 0.0
    record: Mapping[str, Any] = field(factory=dict)
    rows: Sequence[Mapping[str, Any]] = ()
    warnings: Counter[str] = field(factory=Counter)
    _curves: dict[str, deque[float]] = field(factory=dict)
    _recent_steps: deque[tuple[float, int]] = field(factory=lambda: deque(maxlen=_RATE_WINDOW))
    _start: float | None = None

    def update(self, record: Mapping[str, Any], *, seconds: float) -> None:
        """Add the metrics of a step that finished at time `seconds`."""
        self.record, self.now = record, seconds
        self._start = seconds if self._start is None else self._start
        self._recent_steps.append((seconds, record["step"]))
        self.add_to_curves(record)

    def add_to_curves(self, record: Mapping[str, Any]) -> None:
        """Add the metrics of a step to the curves. A step of an earlier process counts for nothing else.

        A metric without a value is left out: null stands for NaN and infinity in the metrics of a resumed run.
        """
        for metric, label in CURVE_LABELS.items():
            if record.get(metric) is not None:
                self._curves.setdefault(label, deque(maxlen=_MAX_CURVE_POINTS)).append(record[metric])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width, height = options.max_width, console.size.height
        yield Text.assemble((printable(self.name, width), "bold"), ("  " + printable(self.title, width), "dim"))
        yield self._progress(width)
        if self._curves:
            yield Padding(self._curve_table(width), (1, 0, 0, 0))
        if "time/step" in self.record:
            yield Padding(self._time_by_phase(width), (1, 0, 0, 0))
        if self.rows and height > _RESERVED_LINES + 2:
            yield Padding(self._completion_table(height - _RESERVED_LINES), (1, 0, 0, 0))
        for warning, count in list(self.warnings.items())[-3:]:
            repeats = f"  x{count}" if count > 1 else ""
            yield Text(f"warning: {printable(warning, 2 * width)}{repeats}", style="yellow")

    def _progress(self, width: int) -> RenderableType:
        step = self.record.get("step", 0)
        facts = [f"step {step:,} of {self.max_steps:,}"]
        if self.elapsed is not None:
            facts += [f"{format_duration(self.elapsed)} elapsed"]
        if self.remaining is not None:
            rate = format_number(self._steps_per_second())
            facts += [f"{format_duration(self.remaining)} remaining", f"{rate} steps/s"]
        if "time/tokens_per_second" in self.record:
            facts += [f"{format_number(self.record['time/tokens_per_second'])} tokens/s"]
        bar = ProgressBar(total=self.max_steps, completed=step, width=max(8, min(40, width // 6)))
        grid = Table.grid(padding=(0, 2))
        grid.add_row(bar, Text("   ".join(facts)))
        return grid

    @property
    def elapsed(self) -> float | None:
        """Seconds since the first record; None before it."""
        return None if self._start is None else self.now - self._start

    @property
    def remaining(self) -> float | None:
        """Seconds that the remaining steps take at the rate of the last ones; None if the rate is not known yet."""
        rate = self._steps_per_second()
        return max(0, self.max_steps - self.record.get("step", 0)) / rate if rate else None

    def _steps_per_second(self) -> float:
        """Mean over the last steps; 0 if it is not known yet."""
        if len(self._recent_steps) < 2:
            return 0.0
        (start, first_step), (end, last_step) = self._recent_steps[0], self._recent_steps[-1]
        return (last_step - first_step) / (end - start) if end > start else 0.0

    def _curve_table(self, width: int) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        for label, values in self._curves.items():
            curve = Text(sparkline(list(values), max(8, min(60, width - 24))), style="green")
            grid.add_row(Text(label), Text(format_number(values[-1]), justify="right", style="bold"), curve)
        return grid

    def _time_by_phase(self, width: int) -> RenderableType:
        total = self.record["time/step"]
        phases = step_phases(self.record)
        seconds = {phase: self.record[f"time/{phase}"] for phase in _PHASE_COLORS if phase in phases}
        seconds["other"] = max(0.0, total - sum(seconds.values()))
        cells = split_cells(list(seconds.values()), max(8, min(60, width - 24)))
        bar = Text.assemble(*(("█" * n, _PHASE_COLORS[phase]) for phase, n in zip(seconds, cells, strict=True)))
        legend = [
            Text(f"■ {phase} {format_number(value)}", _PHASE_COLORS[phase])
            for phase, value in seconds.items()
            if value >= 0.005 * total
        ]
        grid = Table.grid(padding=(0, 2))
        grid.add_row(Text("seconds "), Text(format_number(total), style="bold"), bar)
        grid.add_row("", "", Columns(legend, padding=(0, 2)))
        return grid

    def _completion_table(self, max_lines: int) -> RenderableType:
        table = Table(box=None, padding=(0, 2, 0, 0), expand=True, header_style="dim")
        table.add_column("reward", justify="right")
        table.add_column("prompt", no_wrap=True, overflow="ellipsis", ratio=2)
        table.add_column("completion", no_wrap=True, overflow="ellipsis", ratio=3)
        for row in self.rows[: min(8, max_lines - 1)]:
            reward = "-" if row["reward"] is None else format_number(row["reward"])
            cells = (Text(printable(str(row[name]), _MAX_TEXT_LENGTH)) for name in ("prompt", "completion"))
            table.add_row(Text(reward, style="bold"), *cells)
        return table
