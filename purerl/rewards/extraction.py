"""Finding the answer in a completion: rules in a table, each with an example, and what numbers look like.

Each rule takes the last place where it applies; where nothing can be read there it goes back a few places, and then it
is the next rule's turn. What was thought, up to the last ``</think>``, is not looked at. Whatever a completion holds,
finding its answer takes time that grows with its length at most linearly: only the end of a long completion is looked
at, patterns cannot run back and forth, and braces are counted, not matched by a pattern.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

__all__ = ["RULES", "Rule", "compact", "exact_number", "extract", "first_number", "last_boxed", "measured", "places"]

_LAST = 8192  # characters at the end of a completion in which an answer is looked for
_MOST_BOXES = 16
_MOST_PLACES = 16
_LONGEST_NUMBER = 64
_MOST_DIGITS = 300


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


def _box(text: str) -> Iterable[str]:
    """A rule: what is in the last box, and in no other."""
    inside = last_boxed(text)
    return () if inside is None else (inside,)


def _tag(text: str) -> Iterable[str]:
    """A rule: what is between the last tags, or after the last one that is open."""
    _, tag, rest = text.rpartition("<answer>")
    return (rest.partition("</answer>")[0].strip(),) if tag else ()


def _after(marker: str) -> Callable[[str], Iterable[str]]:
    """A rule: the rests of the lines after the last matches of the pattern `marker`."""
    pattern = re.compile(marker, re.IGNORECASE | re.MULTILINE)

    def find(text: str) -> Iterator[str]:
        rests = (text[found.end() :].partition("\n")[0].strip() for found in _last(pattern, text))
        return (rest for rest in rests if rest)

    return find


def _last_number(text: str) -> Iterable[str]:
    """A rule: the last number, and no other."""
    return [found[0] for found in _last(_NUMBER, plain(text))][:1]


_OPTION = re.compile(
    r"\b(?:option|choice)\s{1,3}is\b[\s:*]*([^\n]{1,80})|"
    r"(?:\b(?:option|choice)\b|^|[.,:;])[ \t*]{0,3}(\S{1,12})[ \t]{1,3}is[ \t]{1,3}"
    r"(?:the[ \t]{1,3})?(?:correct|right|best)\b",
    re.IGNORECASE | re.MULTILINE,
)


def _option(text: str) -> Iterable[str]:
    """A rule: what is said to be the option, or to be correct."""
    return (found[1] or found[2] for found in _last(_OPTION, text))


_LONE_LETTER = re.compile(r"^[^\w\n]{0,8}[A-Za-z][^\w\n]{0,8}$", re.MULTILINE)
_LETTERED = re.compile(r"(?<!\S)[*(\[]{0,4}[A-Z][*.)\]]{1,4}\s")


def _lone_letter(text: str) -> Iterable[str]:
    """A rule: the last line that is a letter."""
    return (found[0].strip() for found in _last(_LONE_LETTER, text))


def _lettered_line(text: str) -> Iterable[str]:
    """A rule: all of a text of one line that begins with a lettered mark and has no other."""
    line = text.strip()
    return (line,) if "\n" not in line and _LETTERED.match(line) and len(_LETTERED.findall(line)) == 1 else ()


def _last(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """The last matches of `pattern`, from the last one back."""
    return reversed(deque(pattern.finditer(text), maxlen=_MOST_PLACES))


class Rule(NamedTuple):
    """How it is said what the answer is: its name, what is taken, how it is found, the last place first; an example."""

    name: str
    takes: str
    find: Callable[[str], Iterable[str]]
    example: str
    answer: str


RULES = {
    rule.name: rule
    for rule in (
        Rule("boxed", r"what is in the last `\boxed{...}`", _box, r"So \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        Rule("tag", "what is in the last `<answer>...</answer>`", _tag, "<answer>72</answer>", "72"),
        Rule(
            "hashes",
            "the rest of the line after the last `####`, headings aside",
            _after(r"####(?![ \t*]*(?:[a-z]{2}|\d+[.):][ \t]+[a-z]))"),
            "#### Step 1: multiply\nso 9 * 8\n#### 72",
            "72",
        ),
        Rule(
            "phrase",
            "the rest of the line after the last `answer is`, `answer:` or `answer =`",
            _after(r"\banswer[*\s]{0,3}(?:is|are|:|=)[\s:*]*(?:(?<=\n)- )?"),
            "**Answer:** 72 apples.",
            "72 apples.",
        ),
        Rule(
            "letter A", "the rest of the last line that begins with `A:`", _after(r"^[ \t*]*A:[ \t*]*"), "A: 72", "72"
        ),
        Rule("last number", "the last number", _last_number, "He has 5 - 3 = 2 left.", "2"),
        Rule(
            "option",
            "what follows the last `option is` or `choice is`, or is said to be `correct`, `right` or `best`",
            _option,
            "So option C is correct.",
            "C",
        ),
        Rule("lone letter", "the last line that is a letter", _lone_letter, "It cannot be A.\n(D)", "(D)"),
        Rule(
            "lettered line",
            "all of a text of one line that begins with a letter and a point or bracket, the only ones",
            _lettered_line,
            "C. Paris",
            "C. Paris",
        ),
    )
}
"""The rules, by name, in the order in which they are tried: the first ones for all, then for numbers, then letters."""


def places(completion: str, rules: Sequence[str]) -> Iterator[str]:
    """What `rules` find at the end of `completion`, after what was thought, one rule after the other.

    >>> [*places("<think>The answer is 4.</think> The answer is 5. No: the answer is 7.", ["boxed", "phrase"])]
    ['7.', '5. No: the answer is 7.']
    """
    tail = completion.rpartition("</think>")[2][-_LAST:]
    return (found for name in rules for found in RULES[name].find(tail))


def extract(completion: str, rules: Sequence[str]) -> str | None:
    """What the first of `rules` that applies finds in the last place.

    >>> extract("The answer is 5. No: the answer is 7.", ["boxed", "phrase"])
    '7.'
    """
    return next(places(completion, rules), None)


# --- numbers -----------------------------------------------------------------------------------------------------

_SAME = str.maketrans({"\u2212": "-", "\u2013": "-", "\uff0d": "-", "\ufe63": "-", "\u00d7": r"\times "})
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
    (?: (?P<whole> \d[\d,]*+) [ ] (?= \d+[ ]?/[ ]?\d))?
    (?P<digits> \d[\d,]*+ (?:\.\d+)? | \.\d+)
    (?: e(?P<ten> [-+]?\d+) | \^(?P<power> -?\d+ | \{-?\d+\}) | [ ]?/[ ]?(?P<under> \d+))?""",
    re.IGNORECASE | re.VERBOSE,
)


def plain(text: str) -> str:
    r"""`text` with one sign for minus, without currency signs and narrow spaces in numbers, and with fractions as a/b.

    >>> plain(r"\$1{,}234 or -\frac{1}{2}")
    ' 1,234 or -1/2 '
    """
    text = text.translate(_SAME)
    for pattern, instead in _LATEX:
        text = pattern.sub(instead, text)
    return text


def compact(text: str) -> str:
    r"""`text`, plain, without spaces but those between two digits.

    >>> compact(r"x + 1\frac{1}{2}")
    'x+1 1/2'
    """
    return re.sub(r"(?<!\d) | (?!\d)", "", " ".join(plain(text).split()))


_CLAUSE = re.compile(r"[,;.](?=\s)|\b(?:since|because|as|where|when|with|for|if)\b", re.IGNORECASE)


def first_number(answer: str) -> Fraction | None:
    """The first number in `answer`, after the last ``=`` of its clause; None where there is none.

    >>> first_number("9 * 8 = $72.50 for 3 boxes."), first_number("12, since x = 9 and y = 3")
    (Fraction(145, 2), Fraction(12, 1))
    """
    parts = (part for clause in _CLAUSE.split(plain(answer)) for part in (clause.rpartition("=")[2], clause))
    found = next((found for part in parts if (found := _NUMBER.search(part))), None)
    return _value(found) if found else None


_WRAPPED = r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf|it)|mbox)\{"
_POWER = r"(?:\^\{?-?\d\}?)?"
_UNITS = (
    (re.compile(_WRAPPED + r"(\s*[-+]?[\d.][\d.,/]*)(?:\s[^{}\d]{0,50})?\}"), r" \1 "),
    (re.compile(_WRAPPED + r"([^{}]{0,50}\d[^{}]{0,50})\}"), r" \1 "),
    (re.compile(_WRAPPED + r"[^{}]{0,50}\}" + _POWER), " "),
    (re.compile(r"\\?%|\^\{?\\circ\}?|\\degree\b|°"), " "),
)
_SHORT = "m|g|s|h|l|cm|mm|km|nm|ft|in|yd|mi|kg|mg|lb|oz|ml|cl|dl|hr|am|pm|hz|kw|kj|mb|gb|of"
_LONG = r"(?!sqrt|sin|cos|tan|log|exp)[a-z]{3,}+"
_WORDS = re.compile(rf"\s?(?:(?:(?i:{_SHORT})|[NJWVACFK])\b|(?i:{_LONG})){_POWER}[A-Za-z\s/]*+{_POWER}")


def exact_number(answer: str) -> Fraction | None:
    r"""The number that `answer` is, percent signs and what is written as a unit aside; None where it is anything else.

    >>> exact_number(r"\$1,234.00"), exact_number(r"72\text{ cm}^2"), exact_number("2x"), exact_number("1, 2")
    (Fraction(1234, 1), Fraction(72, 1), None, None)
    """
    found = _NUMBER.fullmatch(_bare(answer))
    return _value(found) if found else None


def measured(answer: str) -> Fraction | None:
    r"""The number that `answer` is, after the last ``=``, units in plain words aside; None where it is anything else.

    >>> measured("x = 72 km/h"), measured(r"\textbf{72 apples}"), measured("5x"), measured(r"2\pi")
    (Fraction(72, 1), Fraction(72, 1), None, None)
    """
    bare = _bare(answer.rpartition("=")[2])
    found = _NUMBER.match(bare)
    return _value(found) if found and (found.end() == len(bare) or _WORDS.fullmatch(bare, found.end())) else None


def _bare(answer: str) -> str:
    """`answer`, plain, without units that are written as such."""
    text = plain(answer)
    for pattern, instead in _UNITS:
        text = pattern.sub(instead, text)
    return text.lstrip(" \n\\").rstrip(" \n\\.")


def _value(found: re.Match[str]) -> Fraction | None:
    """The number that is written there; None where commas do not part thousands, or for one that is too long."""
    token = {name: part or "" for name, part in found.groupdict().items()}
    if len(found[0]) > _LONGEST_NUMBER or not (_parted(token["whole"]) and _parted(token["digits"].partition(".")[0])):
        return None
    digits, power = token["digits"].replace(",", ""), int(token["power"].strip("{}") or 1)
    ten = int(token["ten"] or 0)
    if max(abs(ten), abs(power) * len(digits)) > _MOST_DIGITS:
        return None
    try:
        size = Fraction(digits) ** power * Fraction(10) ** ten / int(token["under"] or 1)
    except ZeroDivisionError:
        return None
    size += int(token["whole"].replace(",", "") or 0)
    return -size if token["sign"] == "-" else size


def _parted(whole: str) -> bool:
    return "," not in whole.rstrip(",") or bool(re.fullmatch(r"\d{1,3}(?:,\d{3})+,?", whole))
