"""Rewards for mathematics: they compare the answer in a completion with the ground truth.

Each function extracts the answer with rules of `purerl.rewards.extraction`. The ground truth is the column `answer`, or
`reward_model.ground_truth` in verl's files. `purerl.rewards.numbers` reads numbers, and `purerl.rewards.answers`
compares all other answers, such as formulas, sets and intervals.

A ground truth that cannot be read is a failure, whatever the completion is. An answer that cannot be read scores 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from purerl.rewards.adapters import checked_by, needs_one_of
from purerl.rewards.answers import EXACT, Rules, is_correct
from purerl.rewards.extraction import extract, find_candidates
from purerl.rewards.letters import extract_letter
from purerl.rewards.numbers import compact, exact_number, first_number, has_alternatives, number_with_units
from purerl.rewards.sentences import stated_answer
from purerl.rewards.truths import aime_truth, formula_truth, letter_truth, number_truth

__all__ = [
    "NUMERIC",
    "aime",
    "boxed",
    "extract_boxed",
    "extract_letter",
    "extract_number",
    "gsm8k",
    "has_boxed",
    "math",
    "multiple_choice",
    "numeric",
]

NUMERIC = Rules(relative_tolerance=1e-6)
"""The rules of `numeric`."""
_UNBOXED_RULES = ("answer tag", "hashes", "phrase")
_NUMBER_RULES = ("answer tag", "hashes", "phrase", "A: prefix", "last number")


@needs_one_of("answer", "reward_model")
@checked_by(number_truth)
def gsm8k(completion: str, example: Mapping[str, Any]) -> float:
    r"""1 if the number in the completion equals the ground truth exactly, 0 otherwise.

    The ground truth may be a complete solution that ends with ``#### 72``, as in GSM8K.

    >>> example = {"answer": "9 * 8 = <<9*8=72>>72 dollars\n#### 72"}
    >>> gsm8k("The answer is $72.00.", example), gsm8k("The answer is 72.01", example)
    (1.0, 0.0)
    """
    return float(_extract_number(completion) == number_truth(example))


@needs_one_of("answer", "reward_model")
@checked_by(number_truth)
def numeric(completion: str, example: Mapping[str, Any], *, rules: Rules = NUMERIC) -> float:
    r"""1 if the number in the completion equals the ground truth up to a relative error of 1e-6, 0 otherwise.

    The kind of reward `numeric` has settings for the tolerance.

    >>> numeric(r"so \boxed{0.3333333}", {"answer": "1/3"}), numeric("about 0.33", {"answer": "1/3"})
    (1.0, 0.0)
    """
    answer, expected = _extract_number(completion), number_truth(example)
    return float(answer is not None and abs(answer - expected) <= rules.tolerance(expected))


@needs_one_of("answer", "reward_model")
@checked_by(aime_truth)
def aime(completion: str, example: Mapping[str, Any]) -> float:
    r"""1 if the answer of the completion is the integer from 0 to 999 that is the ground truth, 0 otherwise.

    Unlike `gsm8k`, it does not take the last number of a completion without an answer.

    >>> aime(r"Thus $m + n = \boxed{33}$.", {"answer": "033"}), aime("There are 33 of them.", {"answer": "033"})
    (1.0, 0.0)
    """
    expected = aime_truth(example)
    return float(_extract_number(completion, _UNBOXED_RULES) == expected)


@needs_one_of("answer", "reward_model")
@checked_by(formula_truth)
def math(completion: str, example: Mapping[str, Any], *, rules: Rules = EXACT) -> float:
    r"""1 if the answer of the completion equals the ground truth, 0 otherwise.

    The answer is in a box, in an answer tag, after `####`, or after a phrase such as "the answer is". It may be a
    number, a formula, an equation, a list, a set, an interval, a vector, a quantity with units, a word, ... A page of
    the documentation says which answers are equal. The kind of reward `math` has settings for the `rules`.

    Raises: ValueError if the ground truth cannot be read.

    >>> math(r"so \boxed{0.5}", {"answer": r"\frac{1}{2}"}), math("The answer is $(x+1)^2$.", {"answer": "x^2+2x+1"})
    (1.0, 1.0)
    >>> math(r"so \boxed{3.14}", {"answer": r"\pi"}, rules=Rules(absolute_tolerance=0.01))
    1.0
    """
    return _compare(_extract_formula(completion), example, rules)


@needs_one_of("answer", "reward_model")
@checked_by(formula_truth)
def boxed(completion: str, example: Mapping[str, Any], *, rules: Rules = EXACT) -> float:
    r"""As `math`, but 0 if the completion has no ``\boxed{...}``.

    >>> boxed(r"so \boxed{0.5}", {"answer": r"\frac{1}{2}"}), boxed("The answer is 0.5.", {"answer": "0.5"})
    (1.0, 0.0)
    """
    return _compare(extract(completion, ["boxed"]), example, rules)


@needs_one_of("answer", "reward_model")
@checked_by(letter_truth)
def multiple_choice(completion: str, example: Mapping[str, Any]) -> float:
    """1 if the letter in the completion equals the ground truth, 0 otherwise.

    The ground truth may be the 0-based index of the letter.

    >>> multiple_choice("It is warm, so the answer is (B).", {"answer": "B"}), multiple_choice("A", {"answer": 1})
    (1.0, 0.0)
    """
    return float(extract_letter(completion) == letter_truth(example))


def has_boxed(completion: str, example: Mapping[str, Any]) -> float:
    r"""1 if the completion has a ``\boxed{...}`` that is not empty, 0 otherwise. To be used as a gate."""
    return float(bool(extract(completion, ["boxed"])))


def extract_number(completion: str) -> str | None:
    """The number in a completion, as `gsm8k` and `numeric` extract it, in a normalized form; None if there is none.

    >>> extract_number("The answer is $72.00."), extract_number("#### 72"), extract_number("I do not know.")
    ('72', '72', None)
    """
    answer = _extract_number(completion)
    return None if answer is None else str(answer)


def extract_boxed(completion: str) -> str | None:
    r"""The content of the last ``\boxed{...}`` without spaces, numbers in a normalized form; None if there is no box.

    Equal formulas in different notation are different answers.

    >>> extract_boxed(r"so \boxed{0.50}"), extract_boxed(r"\boxed{1/2}"), extract_boxed(r"\boxed{x + 1}")
    ('1/2', '1/2', 'x+1')
    >>> extract_boxed("x") is None
    True
    """
    answer = extract(completion, ["boxed"])
    if answer is None:
        return None
    number = exact_number(answer)
    return compact(answer) if number is None else str(number)


def _compare(answer: str | None, example: Mapping[str, Any], rules: Rules) -> float:
    """Whether `answer` is equal to the ground truth, which must be readable even if there is no answer."""
    expected = formula_truth(example)
    return float(answer is not None and is_correct(answer, expected, rules))


_NEGATION = re.compile(r"\W{0,5}(?:\w{1,12}ly\s)?not\b", re.IGNORECASE)


def _extract_number(completion: str, rules: Sequence[str] = _NUMBER_RULES) -> Fraction | None:
    """The number in the completion, and in its box if it has one; an answer that offers a choice is none."""
    box = extract(completion, ["boxed"])
    if box is not None:
        return number_with_units(box)
    for candidate in find_candidates(completion, rules):
        if has_alternatives(candidate) or _NEGATION.match(candidate):
            return None
        if (number := first_number(candidate)) is not None:
            return number
    return None


def _extract_formula(completion: str) -> str | None:
    """The answer of a completion, without the rest of its sentence; None if there is none."""
    box = extract(completion, ["boxed"])
    if box is not None:
        return box
    answer = extract(completion, _UNBOXED_RULES)
    return None if answer is None else stated_answer(answer)
