"""TensorBoard, in the run directory: ``tensorboard --logdir runs`` shows all runs.

A run that goes on says from which step on what was written before is void, so that TensorBoard shows each step once.
Settings and completions are texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from purerl.protocols import RunInfo, Tracker
from purerl.tracking.library import needs

__all__ = ["Config", "build", "check"]


@frozen(kw_only=True)
class Config:
    """Where TensorBoard finds the run."""

    directory: str | None = field(
        default=None,
        metadata={"help": "a log directory, for a folder of the run; in the run directory if not given"},
    )


def check(config: Config) -> None:
    """Refuse a machine without tensorboard."""
    needs("tensorboard", extra="tensorboard")


def build(config: Config, *, subject: RunInfo) -> Tracker:
    """Begin event files, or go on."""
    from torch.utils.tensorboard import SummaryWriter

    folder = Path(config.directory, subject.label) if config.directory else subject.folder
    writer = SummaryWriter(str(folder), purge_step=subject.first)
    writer.add_text("settings", _table(["setting", "value"], subject.settings.items()), subject.first)
    return _Writer(writer)


@define
class _Writer:
    _writer: Any

    def log(self, record: Mapping[str, Any]) -> None:
        for name, value in record.items():
            if name != "step":
                self._writer.add_scalar(name, value, record["step"])

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._writer.add_text("completions", _table(list(rows[0]), (row.values() for row in rows)), step)

    def close(self, *, failed: bool) -> None:
        self._writer.close()


def _table(head: Sequence[str], rows: Any) -> str:
    """A table in Markdown; whatever is in its cells stays in them, as it is."""
    lines = [head, ["---"] * len(head), *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    return "".join(one if one.isalnum() or one == " " else f"&#{ord(one)};" for one in str(value))
