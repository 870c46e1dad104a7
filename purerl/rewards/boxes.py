r"""Boxes in completions: ``\boxed{...}``, ``\fbox{...}``, and ``\boxed 5`` without braces.

The running time is linear in the length of the text, for a bounded number of boxes: braces are matched by counting.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["last_boxed"]

_MAX_BOXES, _MAX_UNBRACED = 16, 200

_COMMAND = re.compile(
    r"""\\?(?:text)?f?boxed\s*\{ | \\(?:fbox|framebox)\s*\{
    | \\(?:f?boxed|fbox)(?![a-zA-Z])\s*(?=[-+\d.(\[\\] | [A-Za-z](?!\s*[A-Za-z]))""",
    re.VERBOSE,
)
_UNBRACED = re.compile(
    r"""(?P<content> (?: (?!\$|\\[)\]]|\n|\\f?box|[.!?](?:\s|$)). )*? )
    (?: ,? \s* (?:\b(?:and|or)\b)? \s* (?=\\f?box) | \s* (?=\$|\\[)\]]|\n|[.!?](?:\s|$)|$))""",
    re.VERBOSE,
)
_SPACE = r"(?:\s|\$|\\[()\[\],;:! ]|\\\\|\\q?quad\b|[*_`~]|\\(?:left|right)\b\.)"
_JOINED = re.compile(
    rf"""(?: {_SPACE} | [,;&/|>] | \b(?:and|or|as\s+well\s+as)\b
        | \\(?:text|mathrm|textrm|mbox)\{{[\s,]*(?:and|or)?[\s,]*\}} | \\(?:land|lor|wedge|vee|cup)\b
        | (?<=\n)[ \t]{{0,8}}(?:[-+\u2022] | \d{{1,2}}[.)]) (?=\s) )*+
    (?: [A-Za-z](?:_?\w|_\{{\w{{1,3}}\}})? \s* &?= {_SPACE}*+ )? """,
    re.VERBOSE,
)
"""The text between boxes that are one answer with several values."""
_REJECTED = re.compile(rf"(?:\bnot|\binstead\s+of|\brather\s+than){_SPACE}*\Z", re.IGNORECASE)
_PLACEHOLDER = re.compile(
    r"""(?: [\s.,;:$~*\u2026{}] | \\[ldcv]?dots(?![a-z]) | \\[,;:! ] | \\q?quad\b | \\(?:text|mathrm|textbf)(?=\{)
        | \b(?:the|your|my|final|answer|here)\b )*""",
    re.IGNORECASE | re.VERBOSE,
)
_MAX_REJECTION = 40


class _Box(NamedTuple):
    """The positions of a box in its text, and its content."""

    start: int
    end: int
    content: str


def last_boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{...}`` with balanced braces. Of nested boxes it is the innermost one.

    Boxes that are joined by a comma, "and", "or", or only by delimiters of formulas and Markdown, are one answer with
    several values. A box that is empty or has no answer in it, such as ``\boxed{...}``, is left out if there is another
    one, and so is a box after "not". The result is empty if no other box is there, and None if there is none.

    >>> last_boxed(r"so \boxed{1}, no: \boxed{\frac{1}{2}}, or \boxed{3")
    '\\frac{1}{2}'
    >>> last_boxed(r"so \(x = \boxed{2}\) or **\(x = \fbox{3}\)**, in the form \boxed{}")
    '2 or 3'
    """
    joined: list[_Box] = []
    boxes = [*_boxes(text)]
    for box in reversed(boxes):
        if _is_without_answer(text, box):
            continue
        if joined and not (box.end <= joined[-1].start and _JOINED.fullmatch(text, box.end, joined[-1].start)):
            break
        joined.append(box)
    if not joined:
        return "" if boxes else None
    contents = [*dict.fromkeys(box.content for box in reversed(joined))]
    are_equations = all("=" in content for content in contents)
    return (", " if are_equations else " or ").join(contents)


def _boxes(text: str) -> Iterator[_Box]:
    """The last boxes with balanced braces, in the order of the text."""
    if "box" not in text:
        return
    for match in deque(_COMMAND.finditer(text), maxlen=_MAX_BOXES):
        if match[0].endswith("{"):
            content = _read_braces(text, match.end())
            if content is not None:
                yield _Box(match.start(), match.end() + len(content) + 1, content.strip())
        elif unbraced := _UNBRACED.match(text, match.end(), match.end() + _MAX_UNBRACED):
            yield _Box(match.start(), unbraced.end("content"), unbraced["content"].strip())


def _is_without_answer(text: str, box: _Box) -> bool:
    """Whether a box holds no answer, or one that the text before it rejects."""
    is_rejected = _REJECTED.search(text[max(0, box.start - _MAX_REJECTION) : box.start])
    return bool(is_rejected or _PLACEHOLDER.fullmatch(box.content))


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
