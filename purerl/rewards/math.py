"""Rewards for mathematics: they compare the answer in a completion with the ground truth.

Each function extracts the answer with rules of `purerl.rewards.extraction`. The ground truth is the column `answer`, or
`reward_model.ground_truth` in verl's files. Numbers are compared exactly, which takes microseconds. All other answers,
such as formulas, sets and intervals, are compared by math-verify, which gets half a second of CPU time. If it does not
finish in this time, there is no reward.
"""

from __future__ import annotations

import logging
import re
import signal
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from types import FrameType
from typing import Any

from purerl.errors import ConfigError
from purerl.rewards.adapters import needs_one_of
from purerl.rewards.extraction import (
    compact,
    exact_number,
    extract,
    find_candidates,
    first_number,
    last_boxed,
    number_with_units,
)
from purerl.rewards.ground_truth import get_ground_truth

__all__ = [
    "boxed",
    "extract_boxed",
    "extract_letter",
    "extract_number",
    "gsm8k",
    "has_boxed",
    "multiple_choice",
    "numeric",
]

_MAX_VERIFY_SECONDS = 0.5
_MAX_FORMULA_CHARACTERS = 300
_RELATIVE_TOLERANCE = Fraction(1, 10**6)
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NUMBER_RULES = ("answer tag", "hashes", "phrase", "A: prefix", "last number")
_LETTER_RULES = ("boxed", "answer tag", "hashes", "phrase", "option", "single letter", "lettered line")


@needs_one_of("answer", "reward_model")
def gsm8k(completion: str, example: Mapping[str, Any]) -> float:
    r"""1 if the number in the completion equals the ground truth exactly, 0 otherwise.

    The ground truth may be a complete solution that ends with ``#### 72``, as in GSM8K.

    >>> example = {"answer": "9 * 8 = <<9*8=72>>72 dollars\n#### 72"}
    >>> gsm8k("The answer is $72.00.", example), gsm8k("The answer is 72.01", example)
    (1.0, 0.0)
    """
    return float(_extract_number(completion) == _ground_truth_number(example))


@needs_one_of("answer", "reward_model")
def numeric(completion: str, example: Mapping[str, Any]) -> float:
    r"""1 if the number in the completion equals the ground truth up to a relative error of 1e-6, 0 otherwise.

    >>> numeric(r"so \boxed{0.3333333}", {"answer": "1/3"}), numeric("about 0.33", {"answer": "1/3"})
    (1.0, 0.0)
    """
    answer, expected = _extract_number(completion), _ground_truth_number(example)
    return float(answer is not None and abs(answer - expected) <= _RELATIVE_TOLERANCE * abs(expected))


@needs_one_of("answer", "reward_model")
def boxed(completion: str, example: Mapping[str, Any]) -> float | None:
    r"""1 if the content of the last ``\boxed{...}`` equals the ground truth, 0 if it does not or if there is no box.

    The ground truth may be a complete solution with a box. Returns None if math-verify exceeds its time limit.

    >>> boxed(r"so \boxed{0.5}", {"answer": r"\frac{1}{2}"}), boxed("so 0.5", {"answer": "0.5"})
    (1.0, 0.0)
    """
    answer, expected = extract(completion, ["boxed"]), _ground_truth_formula(example)
    return 0.0 if answer is None else _are_equal(answer, expected)


@needs_one_of("answer", "reward_model")
def multiple_choice(completion: str, example: Mapping[str, Any]) -> float:
    """1 if the letter in the completion equals the ground truth, 0 otherwise.

    The ground truth may be the 0-based index of the letter.

    >>> multiple_choice("It is warm, so the answer is (B).", {"answer": "B"}), multiple_choice("A", {"answer": 1})
    (1.0, 0.0)
    """
    return float(extract_letter(completion) == _ground_truth_letter(example))


def has_boxed(completion: str, example: Mapping[str, Any]) -> float:
    r"""1 if the completion has a ``\boxed{...}`` that is not empty, 0 otherwise. To be used as a gate."""
    return float(bool(extract(completion, ["boxed"])))


# --- answer extractors for maj@k ---------------------------------------------------------------------------------


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


# --- answers -----------------------------------------------------------------------------------------------------


def _ground_truth_number(example: Mapping[str, Any]) -> Fraction:
    """The ground truth as a number. Raises ValueError if it is not a number."""
    text = get_ground_truth(example)
    number = number_with_units(extract(text, ["boxed", "hashes"]) or text)
    if number is None:
        raise ValueError(f"the ground truth is not a number: {text!r:.200}")
    return number


def _ground_truth_formula(example: Mapping[str, Any]) -> str:
    """The content of the last box of the ground truth, or all of it if there is no box.

    Raises: ValueError if it is blank.
    """
    text = get_ground_truth(example).strip()
    formula = last_boxed(text) or text
    if not formula:
        raise ValueError("the ground truth is blank")
    return formula


def _ground_truth_letter(example: Mapping[str, Any]) -> str:
    """The ground truth as a letter, from a letter or a 0-based index. Raises ValueError if it is neither."""
    text = get_ground_truth(example).strip()
    letter = _ALPHABET[int(text) :][:1] if text.isdecimal() else extract_letter(text)
    if not letter:
        raise ValueError(f"the ground truth is not a letter: {text!r:.200}")
    return letter


def _extract_number(completion: str) -> Fraction | None:
    """The number in the completion. If there is a box, it must contain a single number with optional units."""
    box = extract(completion, ["boxed"])
    if box is not None:
        return number_with_units(box)
    numbers = (first_number(candidate) for candidate in find_candidates(completion, _NUMBER_RULES))
    return next((number for number in numbers if number is not None), None)


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


def extract_letter(completion: str) -> str | None:
    """The letter in a completion, as `multiple_choice` extracts it; None if there is no letter, or more than one.

    >>> extract_letter("It is warm, so the answer is (B)."), extract_letter("The answer is A or B.")
    ('B', None)
    >>> extract_letter("none") is None
    True
    """
    letters = (_parse_letter(candidate) for candidate in find_candidates(completion, _LETTER_RULES))
    return next((letter for letter in letters if letter is not None), None) or None


def _parse_letter(answer: str) -> str | None:
    """The letter at the start of `answer`, or None if there is none. An empty string if a second letter follows.

    "A" as an article and "I" as a pronoun are not letters.
    """
    match = _LETTER.match(_DECORATION.sub("", answer[:_MAX_FORMULA_CHARACTERS]))
    if match is None:
        return None
    return "" if match["another"] else match["letter"].upper()


# --- equality ----------------------------------------------------------------------------------------------------


def _are_equal(answer: str, expected: str) -> float | None:
    """Compare two answers as strings, then as numbers, then as formulas."""
    if compact(answer) == compact(expected):
        return 1.0
    numbers = exact_number(answer), exact_number(expected)
    if None not in numbers:
        return float(numbers[0] == numbers[1])
    if max(len(answer), len(expected)) > _MAX_FORMULA_CHARACTERS:
        return 0.0
    return _verify(answer, expected)


def _verify(answer: str, expected: str) -> float | None:
    """Compare two formulas with math-verify. Returns None if it exceeds the time limit."""
    are_same = _load_math_verify()
    return _run_with_time_limit(_MAX_VERIFY_SECONDS, lambda: are_same(answer, expected))


@cache
def _load_math_verify() -> Callable[[str, str], bool]:
    """Load a function that compares two formulas.

    It is called once here, because sympy imports modules during its first call. Their import time must not count
    against the time limit.
    """
    try:
        from math_verify import parse, verify
    except ImportError as error:
        raise ConfigError("math-verify is not installed", do="pip install 'purerl[math]'") from error
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)

    def are_same(answer: str, expected: str) -> bool:
        formulas = [parse(f"${text}$", parsing_timeout=None) for text in (expected, answer)]
        return verify(*formulas, timeout_seconds=None)

    are_same("x^2 + 2x + 1", "(x + 1)^2")
    return are_same


class _TimeLimitError(BaseException):
    """Not an Exception, because sympy catches those."""


def _run_with_time_limit(seconds: float, function: Callable[[], bool]) -> float | None:
    """Return the result of `function` as 1 or 0, or None if it takes more than `seconds` of CPU time.

    The limit is on CPU time, so the result does not depend on the load of the computer. A signal interrupts `function`,
    so this works only in the main thread of a process. Python reports and ignores exceptions in finalizers. The signal
    is therefore repeated every tenth of `seconds`, and its exceptions are not reported.
    """
    is_running = True

    def interrupt(number: int, frame: FrameType | None) -> None:
        if is_running:
            raise _TimeLimitError

    def report(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, _TimeLimitError):
            previous_hook(unraisable)

    previous_hook, sys.unraisablehook = sys.unraisablehook, report
    previous_handler = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, seconds, seconds / 10)
    try:
        try:
            return float(function())
        finally:
            is_running = False  # no interruption during the cleanup below
    except _TimeLimitError:
        return None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous_handler)
        sys.unraisablehook = previous_hook
