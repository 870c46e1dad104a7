"""The command `purerl import trl`."""

from __future__ import annotations

from pathlib import Path

__all__ = ["import_trl"]


def import_trl(source: Path, *, processes: int) -> str:
    """The TOML file for the script or YAML file `source`, which would be started on `processes` processes."""
    raise NotImplementedError(source, processes)
