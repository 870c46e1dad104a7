"""Numbers that are short in JSON."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["short"]


def short(value: Any) -> Any:
    """A number to five digits, as short as JSON can say it; what JSON cannot say, as a string; all else as it is.

    >>> short(0.123456789), short(3.0), short(float("nan")), short(True), short(None)
    (0.12346, 3, 'nan', True, None)
    """
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return str(value)
    rounded = float(f"{value:.5g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
