"""Compact numbers for JSON."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["round_number"]


def round_number(value: Any) -> Any:
    """Round a float to five significant digits. Non-finite floats become strings; other types are returned unchanged.

    >>> round_number(0.123456789), round_number(3.0), round_number(float("nan")), round_number(True), round_number(None)
    (0.12346, 3, 'nan', True, None)
    """
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return str(value)
    rounded = float(f"{value:.5g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
