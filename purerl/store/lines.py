"""Reading JSON Lines files to which a run appends, such as its metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from purerl.errors import DataError
from purerl.system.nesting import read_json

__all__ = ["read_lines"]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects in the file; none if it does not exist. A last line without an end is left out: it is incomplete.

    Raises: DataError for a line that is not a JSON object with a step.
    """
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [_read(path, number, line) for number, line in enumerate(lines, start=1) if line.endswith(b"\n")]


def _read(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = read_json(line)
    except ValueError:
        record = None
    if not isinstance(record, dict) or not isinstance(record.get("step"), int):
        got, need = repr(line[:60].decode(errors="replace")), "a JSON object with a step"
        raise DataError(f"line {number} of {str(path)!r} is broken", got=got, need=need, do="fix or remove the line")
    return record
