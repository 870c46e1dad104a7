"""Numbers in texts: integers, decimals, fractions, mixed numbers, powers, with currency symbols, commas and units.

The patterns cannot backtrack without bound, so the running time is at most linear in the length of the text.
"""

from __future__ import annotations

import re
from collections import deque
from fractions import Fraction
from itertools import islice

from purerl.rewards.answers.function_words import names_unit

__all__ = ["compact", "exact_number", "first_number", "has_alternatives", "last_number", "number_with_units", "plain"]

_MAX_NUMBER_CHARACTERS = 64
_MAX_DIGITS = 300

_CHARACTERS = str.maketrans({"\u2212": "-", "\u2013": "-", "\uff0d": "-", "\ufe63": "-", "\u00d7": r"\times "})
_LATEX = (
    (re.compile(r"\\!|\\(?:left|right|displaystyle)\b"), ""),
    (re.compile(r"\\[,;: ]|~"), "\u2009"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"-\\?[$£€¥₹]\s?"), "-"),
    (re.compile(r"\\?[$£€¥₹]"), " "),
    (re.compile(r"\\[dt]?frac ?(\d) ?(\d)(?!\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"([-+])\s?\\[dt]?frac\{(\d+)\}\{(\d+)\}"), r"\1\2/\3 "),
    (re.compile(r"\\[dt]?frac\{(-?\d+)\}\{(\d+)\}"), r" \1/\2 "),
    (re.compile(r"(?<=\d)\s{0,2}(?:\\times|\\cdot)\s{0,2}10\^\{?(-?\d+)\}?"), r"e\1"),
    (re.compile(r"(?<=\d)[\u00a0\u2009\u202f](?=\d{3}(?!\d))"), ""),
    (re.compile(r"(?:^|(?<=[=(\[{]))\s*-\s+(?=\.?\d)"), "-"),
    (re.compile(r"[^\S\n]+"), " "),
)
_NUMBER = re.compile(
    r"""(?<![\w^]) (?<!\^\{) (?P<sign> (?<!\)) [-+])?
    (?: (?P<integer> \d[\d,]*+) [ ] (?= \d+[ ]?/[ ]?\d))?
    (?P<digits> \d[\d,]*+ (?:\.\d+)? | \.\d+)
    (?: e(?P<exponent> [-+]?\d+) | \^(?P<power> -?\d+ | \{-?\d+\}) | [ ]?/[ ]?(?P<denominator> \d+))?""",
    re.IGNORECASE | re.VERBOSE,
)


def plain(text: str) -> str:
    r"""Normalize numbers in `text`: one minus sign, no currency symbols, no thin spaces in numbers, fractions as a/b.

    >>> plain(r"\$1{,}234 or -\frac{1}{2}")
    ' 1,234 or -1/2 '
    """
    text = text.translate(_CHARACTERS)
    for pattern, replacement in _LATEX:
        text = pattern.sub(replacement, text)
    return text


def compact(text: str) -> str:
    r"""Apply `plain` to `text` and remove all spaces that are not between two digits.

    >>> compact(r"x + 1\frac{1}{2}")
    'x+1 1/2'
    """
    return re.sub(r"(?<!\d) | (?!\d)", "", " ".join(plain(text).split()))


_OR = re.compile(r"[\s$%*]{0,5}(?:[A-Za-z]+\s){0,3}(?:,\s?)?(?:or|and/or)\s(?:[A-Za-z]+\s){0,2}[$*\s]{0,5}")
"""The text between two numbers of which only one is meant."""


def has_alternatives(answer: str) -> bool:
    """Whether the first number in `answer` is one of several, as in "18 or 20".

    >>> has_alternatives("18 apples or 20."), has_alternatives("18 or so"), has_alternatives("18, since 9 + 9 = 18")
    (True, False, False)
    """
    text = plain(answer)
    first, second, *_ = (*islice(_NUMBER.finditer(text), 2), None, None)
    return bool(first and second and _OR.fullmatch(text, first.end(), second.start()))


def last_number(text: str) -> str | None:
    """The last number in `text`, in its `plain` form. None if there is none, or if it is one of several.

    >>> last_number("He has 5 - 3 = 2 left."), last_number("It is 18 or 20.")
    ('2', None)
    """
    text = plain(text)
    *_, first, second = (None, None, *deque(_NUMBER.finditer(text), maxlen=2))
    is_alternative = first and second and _OR.fullmatch(text, first.end(), second.start())
    return None if second is None or is_alternative else second[0]


_CLAUSE = re.compile(r"[,;.](?=\s)|\b(?:since|because|as|where|when|with|for|if)\b", re.IGNORECASE)


def first_number(answer: str) -> Fraction | None:
    """The first number in `answer`, or None. In a clause with ``=``, the number after the last ``=`` is preferred.

    >>> first_number("9 * 8 = $72.50 for 3 boxes."), first_number("12, since x = 9 and y = 3")
    (Fraction(145, 2), Fraction(12, 1))
    """
    parts = (part for clause in _CLAUSE.split(plain(answer)) for part in (clause.rpartition("=")[2], clause))
    match = next((match for part in parts if (match := _NUMBER.search(part))), None)
    return _parse_number(match) if match else None


def _number_in_text(match: re.Match[str]) -> str:
    """The number in a command for words, without its unit. Words that name no unit stay."""
    if not names_unit(match["words"] or ""):
        return match[0]
    return f" {match.groupdict().get('number', '')} "


_TEXT_COMMAND = r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf|it)|mbox)\{"
_POWER = r"(?:\^\{?-?\d\}?)?"
_UNITS = (
    (re.compile(_TEXT_COMMAND + r"(?P<number>\s*[-+]?[\d.][\d.,/]*)(?P<words>\s[^{}\d]{0,50})?\}"), _number_in_text),
    (re.compile(_TEXT_COMMAND + r"([^{}]{0,50}\d[^{}]{0,50})\}"), r" \1 "),
    (re.compile(_TEXT_COMMAND + r"(?P<words>[^{}]{0,50})\}" + _POWER), _number_in_text),
    (re.compile(r"\\?%|\^\{?\\circ\}?|\\degree\b|°"), " "),
)
_SHORT_UNITS = "m|g|s|h|l|cm|mm|km|nm|ft|in|yd|mi|kg|mg|lb|oz|ml|cl|dl|hr|am|pm|hz|kw|kj|mb|gb|of"
_LONG_UNITS = r"(?!sqrt|sin|cos|tan|log|exp)[a-z]{3,}+"
_UNIT_WORDS = re.compile(
    rf"\s?(?:(?:(?i:{_SHORT_UNITS})|[NJWVACFK])\b|(?i:{_LONG_UNITS})){_POWER}[A-Za-z\s/]*+{_POWER}"
)

_NEXT_EQUATION = re.compile(r"[,;](?!\s?\d{3})|\bor\b|\band\b")


def exact_number(answer: str) -> Fraction | None:
    r"""The value of `answer` if it is a single number, else None. Percent signs and LaTeX units are ignored.

    >>> exact_number(r"\$1,234.00"), exact_number(r"72\text{ cm}^2"), exact_number("2x"), exact_number("1, 2")
    (Fraction(1234, 1), Fraction(72, 1), None, None)
    """
    match = _NUMBER.fullmatch(_remove_latex_units(answer))
    return _parse_number(match) if match else None


def number_with_units(answer: str) -> Fraction | None:
    r"""The value of `answer` after the last ``=``, if it is a single number with optional units in words; else None.

    >>> number_with_units("x = 72 km/h"), number_with_units(r"\textbf{72 apples}")
    (Fraction(72, 1), Fraction(72, 1))
    >>> number_with_units("5x"), number_with_units(r"2\pi")
    (None, None)
    """
    _, *middle, last = ["", *answer.split("=")]
    if any(map(_NEXT_EQUATION.search, middle[1:])):
        return None  # several equations
    text = _remove_latex_units(last)
    match = _NUMBER.match(text)
    if match is None or (match.end() < len(text) and not _UNIT_WORDS.fullmatch(text, match.end())):
        return None
    return _parse_number(match) if names_unit(text[match.end() :]) else None


def _remove_latex_units(answer: str) -> str:
    """Apply `plain` to `answer` and remove units in LaTeX notation."""
    text = plain(answer)
    for pattern, replacement in _UNITS:
        text = pattern.sub(replacement, text)
    return text.lstrip(" \n\\").rstrip(" \n\\.")


def _parse_number(match: re.Match[str]) -> Fraction | None:
    """The value of a match of `_NUMBER`, or None if it is too long or its commas do not separate thousands."""
    groups = {name: part or "" for name, part in match.groupdict().items()}
    has_valid_commas = _has_valid_commas(groups["integer"]) and _has_valid_commas(groups["digits"].partition(".")[0])
    if len(match[0]) > _MAX_NUMBER_CHARACTERS or not has_valid_commas:
        return None
    integer, digits = groups["integer"].replace(",", ""), groups["digits"].replace(",", "")
    power, exponent = int(groups["power"].strip("{}") or 1), int(groups["exponent"] or 0)
    if max(abs(exponent), abs(power) * len(digits)) > _MAX_DIGITS:
        return None
    try:
        value = Fraction(digits) ** power * Fraction(10) ** exponent / int(groups["denominator"] or 1)
    except ZeroDivisionError:
        return None
    value += int(integer or 0)
    return -value if groups["sign"] == "-" else value


def _has_valid_commas(digits: str) -> bool:
    return "," not in digits.rstrip(",") or bool(re.fullmatch(r"\d{1,3}(?:,\d{3})+,?", digits))
