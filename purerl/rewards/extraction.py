"""Extraction of answers from completions: a table of rules.

Each rule returns candidates, the last match first. If a caller cannot use any candidate of a rule, it continues with
the next rule. Thoughts are ignored: text up to the last ``</think>``, and after a ``<think>`` that is not closed.

The running time is at most linear in the length of the completion, for any content. Only the end of a long completion
is searched, and the patterns cannot backtrack without bound.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from purerl.rewards.boxes import last_boxed
from purerl.rewards.numbers import last_number

__all__ = ["RULES", "Rule", "extract", "find_candidates"]

_MAX_CHARACTERS = 8192  # characters at the end of a completion that are searched
_MAX_MATCHES = 16


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
    """The last number only, if it is not one of several."""
    number = last_number(text)
    return () if number is None else (number,)


_OPTION = re.compile(
    r"\b(?:option|choice)\s{1,3}is\b[\s:*]*([^\n]{1,80})|"
    r"(?:\b(?:option|choice)\b|^|[.,:;])[ \t*]{0,3}(\S{1,12})[ \t]{1,3}is[ \t]{1,3}"
    r"(?:the[ \t]{1,3})?(?:correct|right|best)\b",
    re.IGNORECASE | re.MULTILINE,
)


_SINGLE_LETTER = re.compile(r"^[^\w\n]{0,8}[A-Za-z][^\w\n]{0,8}$", re.MULTILINE)
_LETTERED = re.compile(r"(?<!\S)[*(\[]{0,4}[A-Z][*.)\]]{1,4}\s")


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
            r"the content of the last `\boxed{...}`, `\fbox{...}` or `\boxed 5`",
            _find_boxed,
            r"So \boxed{\frac{1}{2}}, in the form \boxed{}.",
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
        Rule(
            "last number",
            "the last number, unless it is one of several, as in `2 or 3`",
            _find_last_number,
            "He has 5 - 3 = 2 left.",
            "2",
        ),
        Rule(
            "option",
            "the text after the last `option is` or `choice is`, or before `is correct`, `is right` or `is best`",
            lambda text: (match[1] or match[2] for match in _last_matches(_OPTION, text)),
            "So option C is correct.",
            "C",
        ),
        Rule(
            "single letter",
            "the last line that consists of one letter",
            lambda text: (match[0].strip() for match in _last_matches(_SINGLE_LETTER, text)),
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
    """The candidates of `rules` at the end of `completion`, without its thoughts, one rule after the other.

    >>> [*find_candidates("<think>The answer is 4.</think> The answer is 5. No: the answer is 7.", ["boxed", "phrase"])]
    ['7.', '5. No: the answer is 7.']
    """
    tail = completion.rpartition("</think>")[2].partition("<think>")[0][-_MAX_CHARACTERS:]
    return (candidate for name in rules for candidate in RULES[name].find(tail))


def extract(completion: str, rules: Sequence[str]) -> str | None:
    """The first candidate of `rules`, or None.

    >>> extract("The answer is 5. No: the answer is 7.", ["boxed", "phrase"])
    '7.'
    """
    return next(find_candidates(completion, rules), None)
