"""Format numbers, durations, curves and untrusted text for one line of a terminal.

`purerl.system.terminal` has what is for whole texts.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from itertools import accumulate, pairwise

__all__ = ["format_duration", "format_number", "printable", "sparkline", "split_cells"]

_BLOCKS = "▁▂▃▄▅▆▇█"
_REPLACEMENTS = {"\n": "⏎", "\u2028": "⏎", "\u2029": "⏎", "\t": " ", "\r": " "}


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw `values` as at most `width` block characters, scaled from their minimum to their maximum.

    More values than `width` are averaged in bins. A non-finite value is drawn as a space. If all values are equal, the
    curve has medium height.

    >>> sparkline([0.0, 1.0, 2.0, 3.0], 10)
    '▁▃▆█'
    >>> sparkline([0.0, 0.0, 1.0, math.nan, 3.0, 3.0], 3)
    '▁▃█'
    """
    # Dividing by the largest magnitude first prevents overflow in sums and differences.
    scale = max((abs(value) for value in values if math.isfinite(value)), default=0.0) or 1.0
    edges = [len(values) * k // width for k in range(width + 1)] if len(values) > width else range(len(values) + 1)
    bins = [[value / scale for value in values[start:end] if math.isfinite(value)] for start, end in pairwise(edges)]
    means = [sum(bin_values) / len(bin_values) if bin_values else math.nan for bin_values in bins]
    finite = [mean for mean in means if math.isfinite(mean)]
    low, size = (min(finite), max(finite) - min(finite)) if finite else (0.0, 0.0)
    heights = [math.nan if math.isnan(mean) else (mean - low) / size if size else 0.5 for mean in means]
    return "".join(" " if math.isnan(height) else _BLOCKS[round(7 * height)] for height in heights)


def split_cells(parts: Sequence[float], width: int) -> list[int]:
    """Split `width` cells in proportion to `parts`. The result sums to `width`, or is all 0 if all parts are 0.

    >>> split_cells([0.5, 0.25, 0.25], 9)
    [4, 3, 2]
    """
    total = sum(parts)
    ends = [round(width * end / total) for end in accumulate(parts)] if total > 0 else [0] * len(parts)
    return [end - start for start, end in pairwise([0, *ends])]


def printable(text: str, max_length: int) -> str:
    r"""Return `text` as one line of at most `max_length` characters, without control and formatting characters.

    Terminal escape sequences, the bell and bidirectional overrides are replaced and have no effect.

    >>> printable("a\x1b[31m\nb\u202e", 20)
    'a�[31m⏎b�'
    >>> printable("abcdef", 4)
    'abc…'
    """
    shortened = text if len(text) <= max_length else text[: max_length - 1] + "…"
    return "".join(
        _REPLACEMENTS.get(char) or ("�" if unicodedata.category(char)[0] == "C" else char) for char in shortened
    )


def format_number(value: float) -> str:
    """Format a metric in a few significant digits.

    >>> format_number(12345.6), format_number(0.5), format_number(0.00123), format_number(0), format_number(3e38)
    ('12,346', '0.500', '0.00123', '0.000', '3e+38')
    """
    size = abs(value)
    if size >= 1e9:
        return f"{value:.3g}"
    return f"{value:,.0f}" if size >= 1000 else f"{value:.3f}" if size >= 0.01 or value == 0 else f"{value:.3g}"


def format_duration(seconds: float) -> str:
    """Format a duration as minutes:seconds, with hours and days if needed.

    >>> format_duration(59.6), format_duration(3661), format_duration(90000)
    ('1:00', '1:01:01', '1 d 1:00:00')
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{hour}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
    return f"{days} d {clock}" if days else clock
