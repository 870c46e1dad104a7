"""Extraction of answers from completions: a table of rules, and the parsing of numbers.

Each rule returns candidates, the last match first. If a caller cannot use any candidate of a rule, it continues with
the next rule. Text up to the last ``</think>`` is ignored.

The running time is at most linear in the length of the completion, for any content. Only the end of a long completion
is searched, the patterns cannot backtrack without bound, and braces are matched by counting.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

__all__ = [
    "RULES",
    "Rule",
    "compact",
    "exact_number",
    "extract",
    "find_candidates",
    "first_number",
    "last_boxed",
    "number_with_units",
]

_MAX_CHARACTERS = 8192  # characters at the end of a completion that are searched
_MAX_BOXES = 16
_MAX_MATCHES = 16
_MAX_NUMBER_CHARACTERS = 64
_MAX_DIGITS = 300


def last_boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{...}`` with balanced braces. Of nested boxes it is the innermost one.

    >>> last_boxed(r"so \boxed{1}, no: \boxed{\frac{1}{2}}, or \boxed{3")
    '\\frac{1}{2}'
    """
    end = len(text)
    for _ in range(_MAX_BOXES):
        start = text.rfind("boxed{", 0, end)
        if start < 0:
            return None
        content = _read_braces(text, start + len("boxed{"))
        if content is not None:
            return content.strip()
        end = start
    return None


def _read_braces(text: str, start: int) -> str | None:
    """`text` from `start` up to the brace that closes the one before `start`, or None if there is no such brace."""
    depth, position = 1, start
    while position < len(text):
        match text[position]:
            case "\\":
                position += 1
            case "{":
                depth += 1
            case "}":
                depth -= 1
        if depth == 0:
            return text[start:position]
        position += 1
    return None


# --- rules -------------------------------------------------------------------------------------------------------


def _find_boxed(text: str) -> Iterable[str]:
    """The content of the last box only. Earlier boxes are no candidates."""
    content = last_boxed(text)
    return () if content is None else (content,)


def _find_answer_tag(text: str) -> Iterable[str]:
    """The text between the last answer tags, or after the last opening tag if it is not closed."""
    _, tag, rest = text.rpartition("<answer>")
    return (rest.partition("</answer>")[0].strip(),) if tag else ()


def _rest_of_line_after(marker: str) -> Callable[[str], Iterable[str]]:
    """A rule that returns the rest of the line after each match of the pattern `marker`."""
    pattern = re.compile(marker, re.IGNORECASE | re.MULTILINE)

    def find(text: str) -> Iterator[str]:
        rests = (text[match.end() :].partition("\n")[0].strip() for match in _last_matches(pattern, text))
        return (rest for rest in rests if rest)

    return find


def _find_last_number(text: str) -> Iterable[str]:
    """The last number only."""
    return [match[0] for match in _last_matches(_NUMBER, plain(text))][:1]


_OPTION = re.compile(
    r"\b(?:option|choice)\s{1,3}is\b[\s:*]*([^\n]{1,80})|"
    r"(?:\b(?:option|choice)\b|^|[.,:;])[ \t*]{0,3}(\S{1,12})[ \t]{1,3}is[ \t]{1,3}"
    r"(?:the[ \t]{1,3})?(?:correct|right|best)\b",
    re.IGNORECASE | re.MULTILINE,
)


def _find_option(text: str) -> Iterable[str]:
    return (match[1] or match[2] for match in _last_matches(_OPTION, text))


_SINGLE_LETTER = re.compile(r"^[^\w\n]{0,8}[A-Za-z][^\w\n]{0,8}$", re.MULTILINE)
_LETTERED = re.compile(r"(?<!\S)[*(\[]{0,4}[A-Z][*.)\]]{1,4}\s")


def _find_single_letter(text: str) -> Iterable[str]:
    return (match[0].strip() for match in _last_matches(_SINGLE_LETTER, text))


def _find_lettered_line(text: str) -> Iterable[str]:
    line = text.strip()
    return (line,) if "\n" not in line and _LETTERED.match(line) and len(_LETTERED.findall(line)) == 1 else ()


def _last_matches(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """The last matches of `pattern`, in reverse order."""
    return reversed(deque(pattern.finditer(text), maxlen=_MAX_MATCHES))


class Rule(NamedTuple):
    """A way to find the answer in a completion.

    name         the name of the rule
    description  what it extracts, for the documentation
    find         text -> candidates, the last match first
    example      a completion
    answer       its first candidate
    """

    name: str
    description: str
    find: Callable[[str], Iterable[str]]
    example: str
    answer: str


RULES = {
    rule.name: rule
    for rule in (
        Rule(
            "boxed",
            r"the content of the last `\boxed{...}`",
            _find_boxed,
            r"So \boxed{\frac{1}{2}}.",
            r"\frac{1}{2}",
        ),
        Rule(
            "answer tag",
            "the content of the last `<answer>...</answer>`",
            _find_answer_tag,
            "<answer>72</answer>",
            "72",
        ),
        Rule(
            "hashes",
            "the rest of the line after the last `####` that does not start a heading",
            _rest_of_line_after(r"####(?![ \t*]*(?:[a-z]{2}|\d+[.):][ \t]+[a-z]))"),
            "#### Step 1: multiply\nso 9 * 8\n#### 72",
            "72",
        ),
        Rule(
            "phrase",
            "the rest of the line after the last `answer is`, `answer:` or `answer =`",
            _rest_of_line_after(r"\banswer[*\s]{0,3}(?:is|are|:|=)[\s:*]*(?:(?<=\n)- )?"),
            "**Answer:** 72 apples.",
            "72 apples.",
        ),
        Rule(
            "A: prefix",
            "the rest of the last line that starts with `A:`",
            _rest_of_line_after(r"^[ \t*]*A:[ \t*]*"),
            "A: 72",
            "72",
        ),
        Rule("last number", "the last number", _find_last_number, "He has 5 - 3 = 2 left.", "2"),
        Rule(
            "option",
            "the text after the last `option is` or `choice is`, or before `is correct`, `is right` or `is best`",
            _find_option,
            "So option C is correct.",
            "C",
        ),
        Rule(
            "single letter",
            "the last line that consists of one letter",
            _find_single_letter,
            "It cannot be A.\n(D)",
            "(D)",
        ),
        Rule(
            "lettered line",
            "the complete text, if it is one line that starts with a label such as `C.` and has no other label",
            _find_lettered_line,
            "C. Paris",
            "C. Paris",
        ),
    )
}
"""All rules by name, in the order in which they are tried: first for any answer, then for numbers, then for letters."""


def find_candidates(completion: str, rules: Sequence[str]) -> Iterator[str]:
    """The candidates of `rules` at the end of `completion`, after the last ``</think>``, one rule after the other.

    >>> [*find_candidates("<think>The answer is 4.</think> The answer is 5. No: the answer is 7.", ["boxed", "phrase"])]
    ['7.', '5. No: the answer is 7.']
    """
    tail = completion.rpartition("</think>")[2][-_MAX_CHARACTERS:]
    return (candidate for name in rules for candidate in RULES[name].find(tail))


def extract(completion: str, rules: Sequence[str]) -> str | None:
    """The first candidate of `rules`, or None.

    >>> extract("The answer is 5. No: the answer is 7.", ["boxed", "phrase"])
    '7.'
    """
    return next(find_candidates(completion, rules), None)


# --- numbers -----------------------------------------------------------------------------------------------------

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


_CLAUSE = re.compile(r"[,;.](?=\s)|\b(?:since|because|as|where|when|with|for|if)\b", re.IGNORECASE)


def first_number(answer: str) -> Fraction | None:
    """The first number in `answer`, or None. In a clause with ``=``, the number after the last ``=`` is preferred.

    >>> first_number("9 * 8 = $72.50 for 3 boxes."), first_number("12, since x = 9 and y = 3")
    (Fraction(145, 2), Fraction(12, 1))
    """
    parts = (part for clause in _CLAUSE.split(plain(answer)) for part in (clause.rpartition("=")[2], clause))
    match = next((match for part in parts if (match := _NUMBER.search(part))), None)
    return _parse_number(match) if match else None


_TEXT_COMMAND = r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf|it)|mbox)\{"
_POWER = r"(?:\^\{?-?\d\}?)?"
_UNITS = (
    (re.compile(_TEXT_COMMAND + r"(\s*[-+]?[\d.][\d.,/]*)(?:\s[^{}\d]{0,50})?\}"), r" \1 "),
    (re.compile(_TEXT_COMMAND + r"([^{}]{0,50}\d[^{}]{0,50})\}"), r" \1 "),
    (re.compile(_TEXT_COMMAND + r"[^{}]{0,50}\}" + _POWER), " "),
    (re.compile(r"\\?%|\^\{?\\circ\}?|\\degree\b|°"), " "),
)
_SHORT_UNITS = "m|g|s|h|l|cm|mm|km|nm|ft|in|yd|mi|kg|mg|lb|oz|ml|cl|dl|hr|am|pm|hz|kw|kj|mb|gb|of"
_LONG_UNITS = r"(?!sqrt|sin|cos|tan|log|exp)[a-z]{3,}+"
_UNIT_WORDS = re.compile(
    rf"\s?(?:(?:(?i:{_SHORT_UNITS})|[NJWVACFK])\b|(?i:{_LONG_UNITS})){_POWER}[A-Za-z\s/]*+{_POWER}"
)


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
    text = _remove_latex_units(answer.rpartition("=")[2])
    match = _NUMBER.match(text)
    has_only_units = match and (match.end() == len(text) or _UNIT_WORDS.fullmatch(text, match.end()))
    return _parse_number(match) if match and has_only_units else None


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
