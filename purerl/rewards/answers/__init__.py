r"""Comparison of mathematical answers: whether an answer is equal to the ground truth, in any usual notation.

    cleaning    Unicode to LaTeX; removes what only changes the appearance
    tokens      text to tokens; `cursor` is a position in them
    parser      tokens to a tree, of the `nodes` of which all other modules work
    words       answers in words, and letters of choices; `function_words` are in no unit
    values      the value of a formula: exact, or with 60 digits
    scalars     equality of formulas, by the `rules` that can be chosen
    units       units of measurement; `quantities` with units are compared
    items       what lists, equations, tuples and matrices consist of
    linear      linear inequalities in one variable
    real_sets   intervals, unions, conditions on a variable
    notations   times, ratios, remainders, numbers in a base
    equality    equality of answers

The time of a comparison is bounded, without timers: the length of answers, the depth of their brackets, the size of
numbers and the length of lists are limited.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from purerl.rewards.answers.cleaning import clean
from purerl.rewards.answers.equality import is_equal, is_readable
from purerl.rewards.answers.nodes import AnswerSyntaxError, Node
from purerl.rewards.answers.parser import parse
from purerl.rewards.answers.rules import EXACT, Rules
from purerl.rewards.answers.words import as_text, choice, content_of_choice, is_sentence, plain_words

__all__ = ["EXACT", "GroundTruth", "Rules", "is_correct", "read_ground_truth"]

MAX_CHARACTERS = 600
_CACHE_SIZE = 4096


class GroundTruth(NamedTuple):
    """A ground truth: its text, its tree, and the letter if it is a choice."""

    text: str
    node: Node
    letter: str | None


@lru_cache(maxsize=_CACHE_SIZE)
def read_ground_truth(text: str) -> GroundTruth:
    r"""Read a ground truth.

    Raises: ValueError if it is blank, too long, or in a notation that cannot be read.

    >>> read_ground_truth(r"\textbf{(B)}\ 12").letter
    'B'
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"the ground truth has {len(text)} characters; at most {MAX_CHARACTERS} can be compared")
    cleaned = clean(text)
    letter = choice(cleaned)
    try:
        node = _read(content_of_choice(cleaned) or cleaned)
    except AnswerSyntaxError as error:
        if letter is None:
            raise ValueError(f"the ground truth cannot be read: {error}: {text!r:.200}") from error
        node = Node("text", (cleaned,))
    if letter is None and node.op == "text" and is_sentence(text):
        raise ValueError(
            f"the ground truth is a sentence, which no answer equals; give the answer alone: {text!r:.200}"
        )
    return GroundTruth(cleaned, node, letter)


def is_correct(answer: str, truth: GroundTruth, rules: Rules) -> bool:
    r"""Whether an answer is equal to the ground truth. An answer that cannot be read is not.

    >>> is_correct(r"\tfrac{1}{2}", read_ground_truth("0.5"), Rules())
    True
    """
    cleaned = clean(answer) if len(answer) <= MAX_CHARACTERS else ""
    has_digits = truth.node.op == "based" and plain_words(cleaned).lstrip("0") == truth.node.args[0]
    if cleaned and (cleaned == truth.text or has_digits):
        return True
    letter = choice(cleaned) if truth.letter else None
    if letter:
        return letter == truth.letter
    return _is_equal(truth, cleaned, rules) or _is_equal(truth, content_of_choice(cleaned), rules)


def _is_equal(truth: GroundTruth, cleaned: str | None, rules: Rules) -> bool:
    try:
        return bool(cleaned) and is_equal(truth.node, _read(cleaned), rules)
    except AnswerSyntaxError:
        return False


def _read(cleaned: str) -> Node:
    """The tree of a text that `clean` has normalized. Words that are no formula with units are one node."""
    try:
        node = parse(cleaned)
    except AnswerSyntaxError:
        if node := as_text(cleaned):
            return node
        raise
    if not is_readable(node):
        if text := as_text(cleaned):
            return text
        raise AnswerSyntaxError("a formula has no value")
    return node
