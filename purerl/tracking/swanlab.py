"""SwanLab.

A run that goes on goes on in the same SwanLab run: its id is the run directory's. Steps that are done again are sent
again, and SwanLab's server keeps the first of each. Offline, each start leaves a folder of its own, under one id, for
``swanlab sync --id``. Completions are texts.
"""

# The checks run without the library too; its types are then unknown.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from attrs import define, field, frozen

from purerl.protocols import RunInfo, Tracker
from purerl.tracking.library import needs

__all__ = ["Config", "build", "check"]


@frozen(kw_only=True)
class Config:
    """Where SwanLab puts the run. Whatever is not set here is as SwanLab's environment variables and its login say."""

    project: str = field(default="purerl", metadata={"help": "the project that the run belongs to"})
    workspace: str | None = field(default=None, metadata={"help": "the team or user that the project belongs to"})
    name: str | None = field(default=None, metadata={"help": "how the run is shown; its name if not given"})
    mode: Literal["online", "offline"] | None = field(
        default=None,
        metadata={"help": "online, or offline for `swanlab sync` to send later; as SWANLAB_MODE if not given"},
    )


def check(config: Config) -> None:
    """Refuse a machine without swanlab."""
    needs("swanlab", extra="swanlab")


def build(config: Config, *, subject: RunInfo) -> Tracker:
    """Begin the SwanLab run, or go on with it."""
    import swanlab

    where = dict(project=config.project, workspace=config.workspace, mode=config.mode)
    run = swanlab.init(
        name=config.name or subject.name,
        id=subject.identity,
        resume="allow",
        log_dir=str(subject.folder),
        config=dict(subject.settings),
        settings=swanlab.Settings(interactive=False, terminal={"proxy_type": "none"}),
        **where,
    )
    return _Run(run)


@define
class _Run:
    _run: Any

    def log(self, record: Mapping[str, Any]) -> None:
        self._run.log({name: value for name, value in record.items() if name != "step"}, step=record["step"])

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        import swanlab

        texts = ["\n".join(f"{name}: {value}" for name, value in row.items()) for row in rows]
        self._run.log({"completions": [swanlab.Text(text) for text in texts]}, step=step)

    def close(self, *, failed: bool) -> None:
        state, error = ("crashed", "the run was stopped by an error") if failed else ("success", None)
        self._run.finish(state=state, error=error)
