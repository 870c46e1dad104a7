"""Log a run to Trackio: a local database that ``trackio show`` displays, or a Space on the Hugging Face Hub.

A resumed run continues the same Trackio run, which is found by the name and identity of the run. Steps that Trackio
already has are not logged again. Warnings are tables under ``warnings/``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, frozen

from purerl.monitoring.trackers.library import require_library
from purerl.monitoring.trackers.protocol import RunInfo, Tracker
from purerl.settings import setting

__all__ = ["Config", "build", "check"]


@frozen(kw_only=True)
class Config:
    """Settings of the Trackio run. The environment variable TRACKIO_DIR sets the directory of the local database."""

    project: str = setting("Trackio project of the run", default="purerl")
    group: str | None = setting("Trackio shows the runs of one group together", default=None)
    space: str | None = setting("Space on the Hugging Face Hub; if not set, a local database", default=None)


def check(config: Config) -> None:
    """Raise ConfigError if trackio is not installed."""
    require_library("trackio", extra="trackio")


def build(config: Config, *, run_info: RunInfo) -> Tracker:
    """Start the Trackio run, or continue it if the run is resumed."""
    import trackio

    run = trackio.init(
        config.project,
        name=run_info.label,
        group=config.group,
        space_id=config.space,
        resume="allow",
        config=dict(run_info.settings),
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
    )
    return _Run(run, run._next_step)  # noqa: SLF001 - the step after the last logged one; there is no public attribute


@define
class _Run:
    _run: Any
    _first_step: int

    def log(self, record: Mapping[str, Any]) -> None:
        if record["step"] >= self._first_step:
            self._run.log({name: value for name, value in record.items() if name != "step"}, step=record["step"])

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._log_table("completions", step, rows)

    def evaluation_completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._log_table("evaluation_completions", step, rows)

    def _log_table(self, name: str, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        import trackio

        if step >= self._first_step:
            self._run.log({name: trackio.Table(data=[dict(row) for row in rows])}, step=step)

    def warn(self, step: int, name: str, text: str) -> None:
        import trackio

        if step >= self._first_step:
            self._run.log({f"warnings/{name}": trackio.Table(data=[{"warning": text}])}, step=step)

    def close(self, *, failed: bool) -> None:
        self._run.finish()
