"""Files of a run directory that contain one JSON object: data.json, origin.json and summary.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from purerl.errors import RunDirectoryError
from purerl.system.nesting import read_json

__all__ = ["DATA_DO", "damaged", "read_facts", "read_object", "read_origin", "read_summary"]

DATA_DO = "restore it, or remove it to resume the run with the data files and models as they are"
"""The remedy for a damaged data.json."""


def read_facts(path: Path) -> dict[str, Any]:
    """The content of data.json in the run directory `path`; empty if it was not written yet."""
    file = path / "data.json"
    return read_object(file, DATA_DO) if file.exists() else {}


def read_origin(path: Path) -> dict[str, Any] | None:
    """The `run` and the `step` of the checkpoint that the run at `path` started from; None if it started by itself."""
    file, do = path / "origin.json", "restore it, name another directory, or discard the run with --fresh"
    origin = read_object(file, do) if file.exists() else None
    if origin is not None and not {"run", "step", "same_advantage"} <= origin.keys():
        raise damaged(file, str(origin), "the run, the step, and whether the algorithm has the same advantage", do)
    return origin


def read_summary(path: Path) -> dict[str, Any] | None:
    """The summary of the run in the directory `path`; None if it is not finished."""
    file = path / "summary.json"
    do = "remove it, and start the run again: it resumes from its last checkpoint, and is finished once more"
    summary = read_object(file, do) if file.exists() else None
    if summary is not None and not {"steps", "before", "after"} <= summary.keys():
        raise damaged(file, str(summary), "the number of steps, and the evaluations before and after", do)
    return summary


def damaged(file: Path, text: str, need: str, do: str) -> RunDirectoryError:
    """The error for a `file` with the content `text`."""
    return RunDirectoryError(f"{str(file)!r} is damaged", got=repr(text[:60]), need=need, do=do)


def read_object(file: Path, do: str) -> dict[str, Any]:
    """The JSON object in `file`. Raises RunDirectoryError with the remedy `do` if there is none."""
    text = file.read_text(encoding="utf-8", errors="replace")
    try:
        value = read_json(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise damaged(file, text, "a JSON object", do)
    return value
