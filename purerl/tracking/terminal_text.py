"""Small pictures and safe pieces of text, for one line of a terminal."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from itertools import accumulate, pairwise

__all__ = ["format_duration", "format_number", "printable", "sparkline", "split_cells"]

_BLOCKS = "▁▂▃▄▅▆▇█"
_SHOWN_AS = {"\n": "⏎", "\u2028": "⏎", "\u2029": "⏎", "\t": " ", "\r": " "}


def sparkline(values: Sequence[float], width: int) -> str:
    """`values` as a curve of at most `width` blocks, from the least of them to the greatest; more of them are averaged.

    What is not finite is a gap. Where all are equal the curve runs in the middle.

    >>> sparkline([0.0, 1.0, 2.0, 3.0], 10)
    '▁▃▆█'
    >>> sparkline([0.0, 0.0, 1.0, math.nan, 3.0, 3.0], 3)
    '▁▃█'
    """
    # Shares of the largest, so that no sum and no difference overflows.
    peak = max((abs(value) for value in values if math.isfinite(value)), default=0.0) or 1.0
    cuts = [len(values) * k // width for k in range(width + 1)] if len(values) > width else range(len(values) + 1)
    parts = [[value / peak for value in values[low:high] if math.isfinite(value)] for low, high in pairwise(cuts)]
    means = [sum(part) / len(part) if part else math.nan for part in parts]
    known = [mean for mean in means if math.isfinite(mean)]
    low, size = (min(known), max(known) - min(known)) if known else (0.0, 0.0)
    heights = [math.nan if math.isnan(mean) else (mean - low) / size if size else 0.5 for mean in means]
    return "".join(" " if math.isnan(height) else _BLOCKS[round(7 * height)] for height in heights)


def split_cells(parts: Sequence[float], width: int) -> list[int]:
    """How many of `width` cells each of `parts` gets, so that together they fill them; nothing where all are 0.

    >>> split_cells([0.5, 0.25, 0.25], 9)
    [4, 3, 2]
    """
    total = sum(parts)
    ends = [round(width * end / total) for end in accumulate(parts)] if total > 0 else [0] * len(parts)
    return [after - before for before, after in pairwise([0, *ends])]


def printable(text: str, most: int) -> str:
    r"""`text` as one line of at most `most` characters that moves no cursor, rings no bell and reverses no line.

    >>> printable("a\x1b[31m\nb\u202e", 20)
    'a�[31m⏎b�'
    >>> printable("abcdef", 4)
    'abc…'
    """
    cut = text if len(text) <= most else text[: most - 1] + "…"
    return "".join(_SHOWN_AS.get(one) or ("�" if unicodedata.category(one)[0] == "C" else one) for one in cut)


def format_number(value: float) -> str:
    """A metric with three digits that matter.

    >>> format_number(12345.6), format_number(0.5), format_number(0.00123), format_number(0)
    ('12,346', '0.500', '0.00123', '0.000')
    """
    size = abs(value)
    return f"{value:,.0f}" if size >= 1000 else f"{value:.3f}" if size >= 0.01 or value == 0 else f"{value:.3g}"


def format_duration(seconds: float) -> str:
    """A length of time.

    >>> format_duration(59.6), format_duration(3661), format_duration(90000)
    ('1:00', '1:01:01', '1 d 1:00:00')
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{hour}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
    return f"{days} d {clock}" if days else clock
