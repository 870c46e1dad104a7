"""Log a run to Weights & Biases.

The identity of the run directory is the id of the wandb run, so a resumed run continues the same wandb run. Steps that
are repeated after a resume are sent again, and the server drops them. Offline, each start of the run writes a separate
directory with the same id; upload them with ``wandb sync``. Warnings are alerts of wandb.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from attrs import define, frozen

from purerl.monitoring.trackers.library import require_library
from purerl.monitoring.trackers.protocol import RunInfo, Tracker
from purerl.settings import setting

__all__ = ["Config", "build", "check"]


@frozen(kw_only=True)
class Config:
    """Settings of the wandb run. What is not set here comes from wandb's environment variables and login."""

    project: str = setting("wandb project of the run", default="purerl")
    entity: str | None = setting("team or user that owns the project", default=None)
    name: str | None = setting("display name; if not set, the name of the run", default=None)
    group: str | None = setting("wandb shows the runs of one group together", default=None)
    mode: Literal["online", "offline"] | None = setting(
        "online, or offline to upload later with `wandb sync`; if not set, WANDB_MODE applies", default=None
    )


def check(config: Config) -> None:
    """Raise ConfigError if wandb is not installed."""
    require_library("wandb", extra="wandb")


def build(config: Config, *, run_info: RunInfo) -> Tracker:
    """Start the wandb run, or continue it if the run is resumed."""
    import wandb

    quiet = wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True)
    destination = dict(project=config.project, entity=config.entity, group=config.group, mode=config.mode)
    run = wandb.init(
        name=config.name or run_info.name,
        id=run_info.identity,
        resume="allow",
        dir=run_info.folder,
        config=dict(run_info.settings),
        settings=quiet,
        **destination,
    )
    return _Run(run)


@define
class _Run:
    _run: Any

    def log(self, record: Mapping[str, Any]) -> None:
        self._run.log({name: value for name, value in record.items() if name != "step"}, step=record["step"])

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._log_table("completions", step, rows)

    def evaluation_completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._log_table("evaluation_completions", step, rows)

    def _log_table(self, name: str, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        import wandb

        columns = list(rows[0])
        self._run.log({name: wandb.Table(columns, [list(row.values()) for row in rows])}, step=step)

    def warn(self, step: int, name: str, text: str) -> None:
        self._run.alert(f"{name} in step {step}", text, level="WARN")

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))
