"""Comparison of the output of a program with the expected one.

    tokens  the words are equal, however they are separated
    lines   the lines are equal, except for spaces at their ends and empty lines at the end
    exact   the texts are equal, except for line breaks at the end

With "tokens" and "lines", a word that is expected to be a decimal fraction or to have an exponent may differ by
`tolerance`, absolutely or relatively: ``|a - b| <= tolerance * max(1, |b|)``. Integers are compared as text.
"""

from __future__ import annotations

import re
from typing import Literal

__all__ = ["Comparison", "same_output"]

Comparison = Literal["tokens", "lines", "exact"]

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)
_MAX_NUMBER = 64  # characters of a number


def same_output(output: str, expected: str, comparison: Comparison, tolerance: float) -> bool:
    r"""Whether `output` is as expected.

    >>> same_output("1  0.33333334\n", "1\n0.33333333", "tokens", 1e-6)
    True
    >>> same_output("1\n0.5\n\n", "1 \n0.5", "lines", 0.0), same_output("1 ", "1", "exact", 0.0)
    (True, False)
    """
    if comparison == "exact":
        return output.rstrip("\r\n") == expected.rstrip("\r\n")
    if comparison == "tokens":
        return _same_words(output, expected, tolerance)
    lines, expected_lines = _lines(output), _lines(expected)
    return len(lines) == len(expected_lines) and all(
        line == other or (re.findall(r"\s+", line) == re.findall(r"\s+", other) and _same_words(line, other, tolerance))
        for line, other in zip(lines, expected_lines, strict=True)
    )


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _same_words(output: str, expected: str, tolerance: float) -> bool:
    words, expected_words = output.split(), expected.split()
    return len(words) == len(expected_words) and all(
        word == other or _is_close(word, other, tolerance) for word, other in zip(words, expected_words, strict=True)
    )


def _is_close(word: str, expected: str, tolerance: float) -> bool:
    """Whether both are numbers, the expected one is no integer, and they differ by at most the tolerance."""
    if tolerance == 0 or max(len(word), len(expected)) > _MAX_NUMBER or not set(expected) & set(".eE"):
        return False
    if _NUMBER.fullmatch(word) is None or _NUMBER.fullmatch(expected) is None:
        return False
    value, other = float(word), float(expected)
    return value == other or abs(value - other) <= tolerance * max(1.0, abs(other))
