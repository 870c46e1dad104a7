"""Write TensorBoard event files into the run directory. ``tensorboard --logdir runs`` shows all runs.

A resumed run marks the events from its first step on as obsolete, so TensorBoard shows each step once. Settings and
completions are logged as text, and warnings as text under ``warnings/``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from purerl.monitoring.trackers.library import require_library
from purerl.monitoring.trackers.protocol import RunInfo, Tracker

__all__ = ["Config", "build", "check"]


@frozen(kw_only=True)
class Config:
    """Settings of the TensorBoard writer."""

    directory: str | None = field(
        default=None,
        metadata={"help": "log directory, in which each run gets a subdirectory; if not set, the run directory"},
    )


def check(config: Config) -> None:
    """Raise ConfigError if tensorboard is not installed."""
    require_library("tensorboard", extra="tensorboard")


def build(config: Config, *, run_info: RunInfo) -> Tracker:
    """Start a new event file."""
    from torch.utils.tensorboard import SummaryWriter

    folder = Path(config.directory, run_info.label) if config.directory else run_info.folder
    writer = SummaryWriter(str(folder), purge_step=run_info.first)
    writer.add_text("settings", _markdown_table(["setting", "value"], run_info.settings.items()), run_info.first)
    return _Writer(writer)


@define
class _Writer:
    _writer: Any

    def log(self, record: Mapping[str, Any]) -> None:
        for name, value in record.items():
            if name != "step":
                self._writer.add_scalar(name, value, record["step"])

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._log_table("completions", step, rows)

    def evaluation_completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._log_table("evaluation_completions", step, rows)

    def _log_table(self, name: str, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._writer.add_text(name, _markdown_table(list(rows[0]), (row.values() for row in rows)), step)

    def warn(self, step: int, name: str, text: str) -> None:
        self._writer.add_text(f"warnings/{name}", _escape(text), step)

    def close(self, *, failed: bool) -> None:
        self._writer.close()


def _markdown_table(head: Sequence[str], rows: Any) -> str:
    """Format a Markdown table. Cells are escaped, so their content cannot be interpreted as Markdown or HTML."""
    lines = [head, ["---"] * len(head), *([_escape(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escape(value: object) -> str:
    return "".join(char if char.isalnum() or char == " " else f"&#{ord(char)};" for char in str(value))
