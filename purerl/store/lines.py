"""Files that grow by a JSON object a line, as a run's metrics do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["read_lines"]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects in the file, none where there is no file; a line that a kill cut short is left out."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]
