"""What a terminal shows of a run that goes on: how far it is, how it learns, what it costs, what it says."""

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

from purerl.tracking.terminal_text import format_duration, format_number, printable, sparkline, split_cells

__all__ = ["View"]

_CURVES = {
    "reward/mean": "reward",
    "eval/accuracy": "accuracy",
    "policy/loss/nll": "loss",
    "policy/loss/preference": "loss",
    "policy/accuracy": "preferred",
    "policy/margin": "margin",
    "rollout/length": "length",
    "policy/entropy": "entropy",
    "policy/approx_kl": "kl",
}
_PHASES = {
    "generate": "cyan",
    "reward": "yellow",
    "score": "blue",
    "advantage": "white",
    "update": "magenta",
    "sync": "green",
    "other": "bright_black",
}
_REMEMBERED = 512  # values of a curve
_RECENT = 30  # steps that the rate is told from
_LONGEST = 400  # characters of a text that are looked at
_BESIDE = 14  # lines of everything but completions and warnings


@define
class View:
    """What is known of a run, and how it looks; `seconds` are since some moment, the same for all that it is told."""

    name: str
    steps: int
    title: str = ""
    now: float = 0.0
    record: Mapping[str, Any] = field(factory=dict)
    rows: Sequence[Mapping[str, Any]] = ()
    warnings: Counter[str] = field(factory=Counter)
    _curves: dict[str, deque[float]] = field(factory=dict)
    _recent: deque[tuple[float, int]] = field(factory=lambda: deque(maxlen=_RECENT))
    _begun: float | None = None

    def told(self, record: Mapping[str, Any], *, seconds: float) -> None:
        """A step is done."""
        self.record, self.now = record, seconds
        self._begun = seconds if self._begun is None else self._begun
        self._recent.append((seconds, record["step"]))
        for metric, label in _CURVES.items():
            if metric in record:
                self._curves.setdefault(label, deque(maxlen=_REMEMBERED)).append(record[metric])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width, height = options.max_width, console.size.height
        yield Text.assemble((printable(self.name, width), "bold"), ("  " + printable(self.title, width), "dim"))
        yield self._progress(width)
        if self._curves:
            yield Padding(self._learning(width), (1, 0, 0, 0))
        if "time/step" in self.record:
            yield Padding(self._costs(width), (1, 0, 0, 0))
        if self.rows and height > _BESIDE + 2:
            yield Padding(self._completions(height - _BESIDE), (1, 0, 0, 0))
        for warning, count in list(self.warnings.items())[-3:]:
            times = f"  x{count}" if count > 1 else ""
            yield Text(f"warning: {printable(warning, 2 * width)}{times}", style="yellow")

    # --- how far -------------------------------------------------------------------------------------------------

    def _progress(self, width: int) -> RenderableType:
        step = self.record.get("step", 0)
        facts = [f"step {step:,} of {self.steps:,}"]
        if self._begun is not None:
            facts += [f"{format_duration(self.now - self._begun)} gone"]
        if rate := self._rate():
            facts += [f"{format_duration((self.steps - step) / rate)} left", f"{format_number(rate)} steps/s"]
        if "time/tokens_per_second" in self.record:
            facts += [f"{format_number(self.record['time/tokens_per_second'])} tokens/s"]
        grid = Table.grid(padding=(0, 2))
        grid.add_row(
            ProgressBar(total=self.steps, completed=step, width=max(8, min(40, width // 4))), Text("   ".join(facts))
        )
        return grid

    def _rate(self) -> float:
        """Steps a second, over the last few; 0 while there is no telling."""
        if len(self._recent) < 2:
            return 0.0
        (begin, first), (end, last) = self._recent[0], self._recent[-1]
        return (last - first) / (end - begin) if end > begin else 0.0

    # --- how it learns -------------------------------------------------------------------------------------------

    def _learning(self, width: int) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        for label, values in self._curves.items():
            line = Text(sparkline(list(values), max(8, min(60, width - 24))), style="green")
            grid.add_row(Text(label), Text(format_number(values[-1]), justify="right", style="bold"), line)
        return grid

    # --- what it costs -------------------------------------------------------------------------------------------

    def _costs(self, width: int) -> RenderableType:
        whole = self.record["time/step"]
        seconds = {phase: self.record.get(f"time/{phase}", 0.0) for phase in _PHASES if phase != "other"}
        seconds["other"] = max(0.0, whole - sum(seconds.values()))
        cells = split_cells(list(seconds.values()), max(8, min(60, width - 24)))
        bar = Text.assemble(*(("█" * n, _PHASES[phase]) for phase, n in zip(seconds, cells, strict=True)))
        legend = [Text(f"■ {one} {format_number(s)}", _PHASES[one]) for one, s in seconds.items() if s >= 0.005 * whole]
        grid = Table.grid(padding=(0, 2))
        grid.add_row(Text("seconds "), Text(format_number(whole), style="bold"), bar)
        grid.add_row("", "", Columns(legend, padding=(0, 2)))
        return grid

    # --- what it says --------------------------------------------------------------------------------------------

    def _completions(self, lines: int) -> RenderableType:
        table = Table(box=None, padding=(0, 2, 0, 0), expand=True, header_style="dim")
        table.add_column("reward", justify="right")
        table.add_column("prompt", no_wrap=True, overflow="ellipsis", ratio=2)
        table.add_column("completion", no_wrap=True, overflow="ellipsis", ratio=3)
        for row in self.rows[: min(8, lines - 1)]:
            reward = "-" if row["reward"] is None else format_number(row["reward"])
            texts = (Text(printable(str(row[name]), _LONGEST)) for name in ("prompt", "completion"))
            table.add_row(Text(reward, style="bold"), *texts)
        return table
