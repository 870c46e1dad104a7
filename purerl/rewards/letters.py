"""Letters of choices in completions, as `purerl.rewards.math.multiple_choice` extracts them."""

from __future__ import annotations

import re
from itertools import chain

from purerl.rewards.extraction import extract, find_candidates

__all__ = ["extract_letter"]

_MAX_CHARACTERS = 300
_RULES = ("answer tag", "hashes", "phrase", "option", "single letter", "lettered line")

_DECORATION = re.compile(r"\\(?:text|math)(?:bf|it|rm)?\{|[\\*_$`\"\[\]{}\u201c\u201d]")
_REASON = "and|as|based|because|by|due|for|from|given|if|is|nor|or|since|which|with"
_LETTER = re.compile(
    rf"""\s* (?:(?i:the|option|choice|letter)\s+){{0,3}} [('\s]{{0,3}}
    (?P<letter> [A-Z] | (?<=\()[a-z](?=\)) | [a-z](?=[.)]?\s*$)) (?!\w|'\w)
    (?! (?<=[AI])\s+ (?!(?:{_REASON})\b) [a-z])
    (?P<another> (?: \)?\s{{0,3}}(?:,|/|;|&|\b(?:or|and|nor)\b)\s{{0,3}} | \s+)
        (?:(?i:option|choice)\s)? [('\s]{{0,2}} (?!I\s+[a-z]) [A-Z](?![\w']))?""",
    re.VERBOSE,
)

_FORMULA = re.compile(
    r"""[\s$]*(?:\\(?:text|math)\w*\{\s*)?[A-Za-z]\s*\}?\s*
    (?: [+*/^_=<>!|'] | [-(](?!\s*[A-Za-z]{2}) | \\(?!text|math(?:bf|it|rm)|q?quad\b|[\s,;:!)\]]))""",
    re.VERBOSE,
)
"""A formula that starts with a letter, which is no choice: B + 1, or A = \\pi r^2."""

_LAST_LABEL = re.compile(r"(?:(?!\([A-Z]\)|\b(?:or|and)\b|,).)*\\text(?:bf|rm|it)?\{\s*\(([A-Z])\)\s*\}\s*", re.DOTALL)
"""The letter of a choice after its formula, as in 12 \\text{ (C)}."""


def extract_letter(completion: str) -> str | None:
    """The letter in a completion, as `multiple_choice` extracts it; None if there is no letter, or more than one.

    >>> extract_letter("It is warm, so the answer is (B)."), extract_letter("The answer is A or B.")
    ('B', None)
    >>> extract_letter("none") is None
    True
    """
    box = extract(completion, ["boxed"])
    boxes = [] if box is None or _FORMULA.match(box) else [box]
    if box is not None and (label := _LAST_LABEL.fullmatch(box)) and _parse_letter(box) is None:
        boxes = [label[1]]
    letters = (_parse_letter(candidate) for candidate in chain(boxes, find_candidates(completion, _RULES)))
    return next((letter for letter in letters if letter is not None), None) or None


def _parse_letter(answer: str) -> str | None:
    """The letter at the start of `answer`, empty if a second one follows; None if there is none, or an article."""
    match = _LETTER.match(_DECORATION.sub("", answer[:_MAX_CHARACTERS]))
    if match is None:
        return None
    return "" if match["another"] else match["letter"].upper()
