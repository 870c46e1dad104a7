"""An interpreter in whose environment both engines seem to be installed, for tests that start none."""

from __future__ import annotations

from pathlib import Path

__all__ = ["ENGINE_PYTHON"]

ENGINE_PYTHON = str(Path(__file__).parent / "stand_in" / "python")
