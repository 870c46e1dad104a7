"""Finding the answer in a completion: rules in a table, each with an example, and what numbers look like.

Each rule takes the last place where it applies. Whatever a completion holds, finding its answer takes time that grows
with its length at most linearly: only the end of a long completion is looked at, patterns cannot run back and forth,
and braces are counted, not matched by a pattern.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

__all__ = ["LAST", "RULES", "Rule", "exact_number", "extract", "first_number", "last_boxed", "plain"]

LAST = 8192
"""Characters at the end of a completion in which an answer is looked for."""
_MOST_BOXES = 16
_LONGEST_NUMBER = 64


def last_boxed(text: str) -> str | None:
    r"""What is in the last ``\boxed{...}`` whose braces are closed; of nested boxes the innermost.

    >>> last_boxed(r"so \boxed{1}, no: \boxed{\frac{1}{2}}, or \boxed{3")
    '\\frac{1}{2}'
    """
    end = len(text)
    for _ in range(_MOST_BOXES):
        start = text.rfind("boxed{", 0, end)
        if start < 0:
            return None
        inside = _braced(text, start + len("boxed{"))
        if inside is not None:
            return inside.strip()
        end = start
    return None


def _braced(text: str, start: int) -> str | None:
    """`text` from `start` to the brace that closes the one before it; None where there is none."""
    depth, place = 1, start
    while place < len(text):
        match text[place]:
            case "\\":
                place += 1
            case "{":
                depth += 1
            case "}":
                depth -= 1
        if depth == 0:
            return text[start:place]
        place += 1
    return None


def _after(marker: str) -> Callable[[str], str | None]:
    """A rule: the rest of the line after the last match of the pattern `marker`."""
    pattern = re.compile(marker, re.IGNORECASE | re.MULTILINE)

    def find(text: str) -> str | None:
        found = _last(pattern, text)
        rest = text[found.end() :].partition("\n")[0].strip() if found else ""
        return rest or None

    return find


_NUMBER = re.compile(r"(?<!\w)(?:(?<!\))-)?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:e[-+]?\d+|\s?/\s?\d+)?", re.IGNORECASE)


def _last_number(text: str) -> str | None:
    found = _last(_NUMBER, plain(text))
    return found[0] if found else None


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter(deque(pattern.finditer(text), maxlen=1)), None)


class Rule(NamedTuple):
    """A way of saying what the answer is: its name, what is taken, how it is found, and an example."""

    name: str
    takes: str
    find: Callable[[str], str | None]
    example: str
    answer: str


RULES = {
    rule.name: rule
    for rule in (
        Rule("boxed", r"what is in the last `\boxed{...}`", last_boxed, r"So \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        Rule("hashes", "the rest of the line after the last `####`", _after(r"####"), "so 9 * 8\n#### 72", "72"),
        Rule(
            "phrase",
            "the rest of the line after the last `answer is`, `answer:` or `answer =`",
            _after(r"\banswer[*\s]{0,3}(?:is|are|:|=)[\s:*]*"),
            "**Answer:** 72 apples.",
            "72 apples.",
        ),
        Rule(
            "letter A", "the rest of the last line that begins with `A:`", _after(r"^[ \t*]*A:[ \t*]*"), "A: 72", "72"
        ),
        Rule("last number", "the last number", _last_number, "He has 5 - 3 = 2 left.", "2"),
    )
}
"""The rules, by name, in the order in which they are tried."""


def extract(completion: str, rules: Sequence[str]) -> str | None:
    """What the first of `rules` that applies finds at the end of `completion`.

    >>> extract("The answer is 5. No: the answer is 7.", ["boxed", "phrase"])
    '7.'
    """
    tail = completion[-LAST:]
    return next((found for name in rules if (found := RULES[name].find(tail)) is not None), None)


# --- numbers -----------------------------------------------------------------------------------------------------

_SAME = str.maketrans({"\u2212": "-", "\u2013": "-", "\uff0d": "-", "\ufe63": "-", "\u00d7": r"\times "})
_LATEX = (
    (re.compile(r"\\[,!;: ]|\\(?:left|right|displaystyle)\b"), ""),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"-\s?\\?[$£€]\s?"), " -"),
    (re.compile(r"\\?[$£€]"), " "),
    (re.compile(r"\\[dt]?frac\{(-?\d+)\}\{(\d+)\}"), r" \1/\2"),
    (re.compile(r"\s?(?:\\times|\\cdot)\s?10\^\{?(-?\d+)\}?"), r"e\1"),
    (re.compile(r"(?<=\d)[\u00a0\u2009\u202f](?=\d{3}(?!\d))"), ""),
)


def plain(text: str) -> str:
    r"""`text` with one sign for minus, without currency signs and narrow spaces in numbers, and with fractions as a/b.

    >>> plain(r"\$1{,}234 or \frac{1}{2}")
    ' 1,234 or  1/2'
    """
    text = text.translate(_SAME)
    for pattern, instead in _LATEX:
        text = pattern.sub(instead, text)
    return text


def first_number(answer: str) -> Fraction | None:
    """The first number in `answer`, after the last ``=`` in it; None where there is none.

    >>> first_number("9 * 8 = $72.50 for 3 boxes.")
    Fraction(145, 2)
    """
    found = _NUMBER.search(plain(answer).rpartition("=")[2])
    return _value(found[0]) if found else None


_UNITS = re.compile(r"\\(?:text|mathrm|mbox)\{[^{}]{0,50}\}|\\?%|\^\{?\\circ\}?|\^\{[\d\w]\}|\\")


def exact_number(answer: str) -> Fraction | None:
    r"""The number that `answer` is, units and percent signs aside; None where it is anything else.

    >>> exact_number(r"\$1,234.00"), exact_number(r"72\text{ apples}"), exact_number("2x"), exact_number("1, 2")
    (Fraction(1234, 1), Fraction(72, 1), None, None)
    """
    bare = _UNITS.sub(" ", plain(answer)).strip().rstrip(".").strip()
    found = _NUMBER.fullmatch(bare)
    return _value(found[0]) if found else None


def _value(token: str) -> Fraction | None:
    """The number that is written as `token`; None where commas do not part thousands, or for one that is too long."""
    digits = token.replace(" ", "").rstrip(",")
    whole = digits.lstrip("-").partition(".")[0].partition("/")[0]
    if len(digits) > _LONGEST_NUMBER or ("," in whole and not re.fullmatch(r"\d{1,3}(?:,\d{3})+", whole)):
        return None
    try:
        mantissa, _, exponent = digits.replace(",", "").lower().partition("e")
        return Fraction(mantissa) * Fraction(10) ** int(exponent or 0) if len(exponent) <= 4 else None
    except (ValueError, ZeroDivisionError):
        return None
