"""Log a run to SwanLab.

The identity of the run directory is the id of the SwanLab run, so a resumed run continues the same SwanLab run. Steps
that are repeated after a resume are sent again, and the server keeps the first value of each. Offline, each start of
the run writes a separate directory with the same id; upload them with ``swanlab sync --id``. Completions are logged as
text, and warnings as text under ``warnings/``.
"""

# Type checks must also pass if swanlab is not installed. Its types are then unknown.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
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
    """Settings of the SwanLab run. What is not set here comes from SwanLab's environment variables and login."""

    project: str = setting("SwanLab project of the run", default="purerl")
    workspace: str | None = setting("team or user that owns the project", default=None)
    name: str | None = setting("display name; if not set, the name of the run", default=None)
    mode: Literal["online", "offline"] | None = setting(
        "online, or offline to upload later with `swanlab sync`; if not set, SWANLAB_MODE applies", default=None
    )


def check(config: Config) -> None:
    """Raise ConfigError if swanlab is not installed."""
    require_library("swanlab", extra="swanlab")


def build(config: Config, *, run_info: RunInfo) -> Tracker:
    """Start the SwanLab run, or continue it if the run is resumed."""
    import swanlab

    destination = dict(project=config.project, workspace=config.workspace, mode=config.mode)
    run = swanlab.init(
        name=config.name or run_info.name,
        id=run_info.identity,
        resume="allow",
        log_dir=str(run_info.folder),
        config=dict(run_info.settings),
        settings=swanlab.Settings(interactive=False, terminal={"proxy_type": "none"}),
        **destination,
    )
    return _Run(run)


@define
class _Run:
    _run: Any

    def log(self, record: Mapping[str, Any]) -> None:
        self._run.log({name: value for name, value in record.items() if name != "step"}, step=record["step"])

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._log_texts("completions", step, rows)

    def evaluation_completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._log_texts("evaluation_completions", step, rows)

    def _log_texts(self, name: str, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        import swanlab

        formatted = ["\n".join(f"{name}: {value}" for name, value in row.items()) for row in rows]
        self._run.log({name: [swanlab.Text(row) for row in formatted]}, step=step)

    def warn(self, step: int, name: str, text: str) -> None:
        import swanlab

        self._run.log({f"warnings/{name}": swanlab.Text(text)}, step=step)

    def close(self, *, failed: bool) -> None:
        state, error = ("crashed", "the run was stopped by an error") if failed else ("success", None)
        self._run.finish(state=state, error=error)
