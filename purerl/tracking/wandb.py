"""Weights & Biases.

A run that goes on goes on in the same wandb run: its id is the run directory's. Steps that are done again are sent
again, and wandb's server drops what is not newer than what it has. Offline, each start leaves a folder of its own,
under one id, for ``wandb sync``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from attrs import define, field, frozen

from purerl.protocols import RunInfo, Tracker
from purerl.tracking.library import needs

__all__ = ["Config", "build", "check"]


@frozen(kw_only=True)
class Config:
    """Where wandb puts the run. Whatever is not set here is as wandb's environment variables and its login say."""

    project: str = field(default="purerl", metadata={"help": "the project that the run belongs to"})
    entity: str | None = field(default=None, metadata={"help": "the team or user that the project belongs to"})
    name: str | None = field(default=None, metadata={"help": "how the run is shown; its name if not given"})
    group: str | None = field(default=None, metadata={"help": "runs of one group are shown together"})
    mode: Literal["online", "offline"] | None = field(
        default=None, metadata={"help": "online, or offline for `wandb sync` to send later; as WANDB_MODE if not given"}
    )


def check(config: Config) -> None:
    """Refuse a machine without wandb."""
    needs("wandb", extra="wandb")


def build(config: Config, *, subject: RunInfo) -> Tracker:
    """Begin the wandb run, or go on with it."""
    import wandb

    quiet = wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True)
    where = dict(project=config.project, entity=config.entity, group=config.group, mode=config.mode)
    run = wandb.init(
        name=config.name or subject.name,
        id=subject.identity,
        resume="allow",
        dir=subject.folder,
        config=dict(subject.settings),
        settings=quiet,
        **where,
    )
    return _Run(run)


@define
class _Run:
    _run: Any

    def log(self, record: Mapping[str, Any]) -> None:
        self._run.log({name: value for name, value in record.items() if name != "step"}, step=record["step"])

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        import wandb

        columns = list(rows[0])
        self._run.log({"completions": wandb.Table(columns, [list(row.values()) for row in rows])}, step=step)

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))
