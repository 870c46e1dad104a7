"""Folders with one Parquet file per step: rollouts, and completions of evaluations."""

from __future__ import annotations

from pathlib import Path

__all__ = ["step_path", "stored_steps"]


def step_path(folder: Path, step: int) -> Path:
    """The file of `step` in `folder`."""
    return folder / f"{step:06d}.parquet"


def stored_steps(folder: Path) -> list[int]:
    """The steps that have a file in `folder`, in order; none if there is no folder. Other files are ignored."""
    steps = [int(path.stem) for path in folder.glob("*.parquet") if path.stem.isdecimal()]
    return sorted(step for step in steps if step_path(folder, step).is_file())
