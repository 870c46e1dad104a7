"""The metrics of a run: a file of one JSON object for each step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["read_metrics"]


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of the file, none where there is no file; a line that a kill cut short is left out."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]
