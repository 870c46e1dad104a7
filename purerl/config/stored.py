"""The configuration of a started run, read from its directory."""

from __future__ import annotations

from pathlib import Path

from purerl.config.continuing import Change, check_changes
from purerl.config.preset_names import preset_of
from purerl.config.schema import RunConfig
from purerl.config.structure import dumps, read_toml
from purerl.errors import RunDirectoryError

__all__ = ["changes_from", "document", "read_config"]


def read_config(run: Path) -> RunConfig:
    """The configuration of the run in the directory `run`. Raises: RunDirectoryError if there is none."""
    file = run / "config.toml"
    if not file.is_file():
        raise RunDirectoryError(f"run directory {str(run)!r}", got="no config.toml", need="the directory of a run")
    return read_toml(file, RunConfig)


def changes_from(config: RunConfig, stored: Path) -> list[Change]:
    """The settings in which `config` differs from the file `stored` of a started run; as `check_changes`."""
    return check_changes(stored.parent, read_toml(stored, RunConfig), config)


def document(config: RunConfig) -> str:
    """`config` as TOML, after a comment with the name of the preset of its algorithm, if it has one."""
    preset = preset_of(config.algorithm)
    return f"# algorithm: {preset}\n{dumps(config)}" if preset else dumps(config)
