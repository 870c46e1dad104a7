"""Trackio: a database on this machine, which ``trackio show`` shows, or a Space of Hugging Face's hub.

A run that goes on goes on in the same Trackio run, known by its name and its identity. Steps that Trackio has are not
told again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

from purerl.protocols import RunInfo, Tracker
from purerl.tracking.library import needs

__all__ = ["Config", "build", "check"]


@frozen(kw_only=True)
class Config:
    """Where Trackio keeps the run; TRACKIO_DIR says where on this machine."""

    project: str = field(default="purerl", metadata={"help": "the project that the run belongs to"})
    group: str | None = field(default=None, metadata={"help": "runs of one group are shown together"})
    space: str | None = field(default=None, metadata={"help": "a Space of the hub; this machine if not given"})


def check(config: Config) -> None:
    """Refuse a machine without trackio."""
    needs("trackio", extra="trackio")


def build(config: Config, *, subject: RunInfo) -> Tracker:
    """Begin the Trackio run, or go on with it."""
    import trackio

    run = trackio.init(
        config.project,
        name=subject.label,
        group=config.group,
        space_id=config.space,
        resume="allow",
        config=dict(subject.settings),
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
    )
    return _Run(run, run._next_step)  # noqa: SLF001 - one more than the last that it has; it says so nowhere else


@define
class _Run:
    _run: Any
    _first: int

    def log(self, record: Mapping[str, Any]) -> None:
        if record["step"] >= self._first:
            self._run.log({name: value for name, value in record.items() if name != "step"}, step=record["step"])

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        import trackio

        if step >= self._first:
            self._run.log({"completions": trackio.Table(data=[dict(row) for row in rows])}, step=step)

    def close(self, *, failed: bool) -> None:
        self._run.finish()
