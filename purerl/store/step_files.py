"""Folders with one Parquet file per step: rollouts, and completions of evaluations."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purerl.system.files import create

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["step_path", "storable_text", "stored_steps", "write_step"]


def step_path(folder: Path, step: int) -> Path:
    """The file of `step` in `folder`."""
    return folder / f"{step:06d}.parquet"


def stored_steps(folder: Path) -> list[int]:
    """The steps that have a file in `folder`, in order; none if there is no folder. Other files are ignored."""
    steps = [int(path.stem) for path in folder.glob("*.parquet") if path.stem.isdecimal()]
    return sorted(step for step in steps if step_path(folder, step).is_file())


def storable_text(value: Any) -> Any:
    """`value`; in a string, half of a surrogate pair, which Parquet cannot store, is replaced by its escape code."""
    if not isinstance(value, str) or value.isascii():
        return value
    return value.encode(errors="backslashreplace").decode()


def write_step(folder: Path, step: int, table: pa.Table) -> Path:
    """Write `table` as the file of `step`, atomically; an existing one is replaced. `folder` is created if needed."""
    import pyarrow.parquet

    path = step_path(folder, step)
    partial = path.with_suffix(".partial")
    folder.mkdir(exist_ok=True)
    with create(partial) as file:
        pyarrow.parquet.write_table(table, file)
    os.replace(partial, path)
    return path
