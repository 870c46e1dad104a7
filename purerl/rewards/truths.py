"""The ground truth of an example in mathematics: a number, a formula or a letter.

Each function raises ValueError, KeyError or TypeError for a ground truth that no completion can equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from purerl.rewards.answers import GroundTruth, read_ground_truth
from purerl.rewards.boxes import last_boxed
from purerl.rewards.extraction import extract
from purerl.rewards.ground_truth import get_ground_truth
from purerl.rewards.letters import extract_letter
from purerl.rewards.numbers import number_with_units

__all__ = ["MAX_AIME", "aime_truth", "formula_truth", "letter_truth", "number_truth"]

MAX_AIME = 999
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LIST = re.compile(r"""\[\s*(?:"[^"]*"|'[^']*')(?:\s*,\s*(?:"[^"]*"|'[^']*'))*\s*\]""")


_number = lru_cache(1 << 16)(number_with_units)  # the rows of a data set have few different numbers


def number_truth(example: Mapping[str, Any]) -> Fraction:
    """The ground truth as a number: all of it, the content of its box, or what follows ####."""
    text = get_ground_truth(example)
    number = _number(extract(text, ["boxed", "hashes"]) or text)
    if number is None:
        raise ValueError(f"the ground truth is not a number: {text!r:.200}")
    return number


def aime_truth(example: Mapping[str, Any]) -> Fraction:
    """The ground truth as an integer from 0 to 999."""
    number = number_truth(example)
    if number.denominator != 1 or not 0 <= number <= MAX_AIME:
        got = f"{get_ground_truth(example)!r:.200}"
        raise ValueError(f"the ground truth is not an integer from 0 to {MAX_AIME}: {got}")
    return number


def formula_truth(example: Mapping[str, Any]) -> GroundTruth:
    """The ground truth: the content of its last box, what follows ####, or all of it."""
    text = get_ground_truth(example).strip()
    if _LIST.fullmatch(text):
        raise ValueError(f"the ground truth is a list of texts: {text!r:.200}")
    formula = last_boxed(text) or extract(text, ["hashes"]) or text
    if not formula:
        raise ValueError("the ground truth is blank")
    return read_ground_truth(formula)


def letter_truth(example: Mapping[str, Any]) -> str:
    """The ground truth as a letter, from a letter or a 0-based index."""
    text = get_ground_truth(example).strip()
    letter = _ALPHABET[int(text) :][:1] if text.isdecimal() else extract_letter(text)
    if not letter:
        raise ValueError(f"the ground truth is not a letter: {text!r:.200}")
    return letter
