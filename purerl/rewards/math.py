"""Mathematics: is the answer that a completion comes to the example's answer?

Each function finds the answer by rules of `extraction`, and compares it with the example's `answer`; failing that
column, with `reward_model.ground_truth`, where verl's files have it. What is written as a number is compared exactly,
in microseconds. Everything else, formulas and sets and intervals, is compared by math-verify, which has half a second
of CPU time: what it cannot tell in that time has no reward, neither 0 nor 1.
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
from purerl.rewards.extraction import compact, exact_number, extract, first_number, last_boxed, measured, places
from purerl.rewards.ground_truth import ground_truth

__all__ = ["box_in", "boxed", "gsm8k", "has_boxed", "letter_in", "multiple_choice", "number_in", "numeric"]

_SECONDS = 0.5
_LONGEST_FORMULA = 300
_CLOSE = Fraction(1, 10**6)
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NUMBERS = ("tag", "hashes", "phrase", "letter A", "last number")
_LETTERS = ("boxed", "tag", "hashes", "phrase", "option", "lone letter", "lettered line")


@needs_one_of("answer", "reward_model")
def gsm8k(completion: str, example: Mapping[str, Any]) -> float:
    r"""1 where the answer is the example's number, 0 where it is not.

    The example's answer may be a whole solution that ends in ``#### 72``, as GSM8K's are.

    >>> example = {"answer": "9 * 8 = <<9*8=72>>72 dollars\n#### 72"}
    >>> gsm8k("The answer is $72.00.", example), gsm8k("The answer is 72.01", example)
    (1.0, 0.0)
    """
    return float(_answered(completion) == _gold_number(example))


@needs_one_of("answer", "reward_model")
def numeric(completion: str, example: Mapping[str, Any]) -> float:
    r"""1 where the answer is the example's number but for a millionth of it, 0 where it is not.

    >>> numeric(r"so \boxed{0.3333333}", {"answer": "1/3"}), numeric("about 0.33", {"answer": "1/3"})
    (1.0, 0.0)
    """
    answer, right = _answered(completion), _gold_number(example)
    return float(answer is not None and abs(answer - right) <= _CLOSE * abs(right))


@needs_one_of("answer", "reward_model")
def boxed(completion: str, example: Mapping[str, Any]) -> float | None:
    r"""1 where what is in the last ``\boxed{...}`` equals the example's answer, 0 where it does not, or without a box.

    The example's answer may be a whole solution with a box of its own. None where math-verify does not come to an end.

    >>> boxed(r"so \boxed{0.5}", {"answer": r"\frac{1}{2}"}), boxed("so 0.5", {"answer": "0.5"})
    (1.0, 0.0)
    """
    answer, right = extract(completion, ["boxed"]), _gold_formula(example)
    return 0.0 if answer is None else _equal(answer, right)


@needs_one_of("answer", "reward_model")
def multiple_choice(completion: str, example: Mapping[str, Any]) -> float:
    """1 where the answer is the example's letter, 0 where it is another, or none. A number k for an answer is letter k.

    >>> multiple_choice("It is warm, so the answer is (B).", {"answer": "B"}), multiple_choice("A", {"answer": 1})
    (1.0, 0.0)
    """
    return float(letter_in(completion) == _gold_letter(example))


def has_boxed(completion: str, example: Mapping[str, Any]) -> float:
    r"""1 where there is a ``\boxed{...}`` with something in it: a gate."""
    return float(bool(extract(completion, ["boxed"])))


# --- what an answer is, for maj@k --------------------------------------------------------------------------------


def number_in(completion: str) -> str | None:
    """The number that a completion comes to, as `gsm8k` and `numeric` find it, written in one way; None without one.

    >>> number_in("The answer is $72.00."), number_in("#### 72"), number_in("I do not know.")
    ('72', '72', None)
    """
    answer = _answered(completion)
    return None if answer is None else str(answer)


def box_in(completion: str) -> str | None:
    r"""What is in the last ``\boxed{...}``, without spaces; a number in one way; None without a box.

    Formulas that are equal but written otherwise are different answers.

    >>> box_in(r"so \boxed{0.50}"), box_in(r"\boxed{1/2}"), box_in(r"\boxed{x + 1}"), box_in("x")
    ('1/2', '1/2', 'x+1', None)
    """
    answer = extract(completion, ["boxed"])
    if answer is None:
        return None
    number = exact_number(answer)
    return compact(answer) if number is None else str(number)


# --- answers -----------------------------------------------------------------------------------------------------


def _gold_number(example: Mapping[str, Any]) -> Fraction:
    """The example's answer as a number. Raises ValueError where it is none."""
    text = ground_truth(example)
    number = measured(extract(text, ["boxed", "hashes"]) or text)
    if number is None:
        raise ValueError(f"the example's answer is no number: {text!r:.200}")
    return number


def _gold_formula(example: Mapping[str, Any]) -> str:
    """What the example's answer has in its last box; without one, all of it. Raises ValueError where that is blank."""
    text = ground_truth(example).strip()
    formula = last_boxed(text) or text
    if not formula:
        raise ValueError("the example's answer is blank")
    return formula


def _gold_letter(example: Mapping[str, Any]) -> str:
    """The letter that the example's answer is, or whose number, 0 for A. Raises ValueError where it is neither."""
    text = ground_truth(example).strip()
    letter = _ALPHABET[int(text) :][:1] if text.isdecimal() else letter_in(text)
    if not letter:
        raise ValueError(f"the example's answer is no letter: {text!r:.200}")
    return letter


def _answered(completion: str) -> Fraction | None:
    """The number that the completion comes to. A box has to hold that number and nothing else but units."""
    box = extract(completion, ["boxed"])
    if box is not None:
        return measured(box)
    numbers = (first_number(found) for found in places(completion, _NUMBERS))
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


def letter_in(completion: str) -> str | None:
    """The letter that a completion chooses, as `multiple_choice` finds it; None without one, or where it names two.

    >>> letter_in("It is warm, so the answer is (B)."), letter_in("The answer is A or B."), letter_in("none")
    ('B', None, None)
    """
    letters = (_letter(found) for found in places(completion, _LETTERS))
    return next((letter for letter in letters if letter is not None), None) or None


def _letter(answer: str) -> str | None:
    """The letter that `answer` begins with, but for an article or a pronoun; an empty text where it names two."""
    found = _LETTER.match(_DECORATION.sub("", answer[:_LONGEST_FORMULA]))
    if found is None:
        return None
    return "" if found["another"] else found["letter"].upper()


# --- equality ----------------------------------------------------------------------------------------------------


def _equal(answer: str, ground_truth: str) -> float | None:
    """Whether two answers are equal: as texts, as numbers, and at last as formulas."""
    if compact(answer) == compact(ground_truth):
        return 1.0
    one, other = exact_number(answer), exact_number(ground_truth)
    if one is not None and other is not None:
        return float(one == other)
    if max(len(answer), len(ground_truth)) > _LONGEST_FORMULA:
        return 0.0
    return _verified(answer, ground_truth)


def _verified(answer: str, ground_truth: str) -> float | None:
    """What math-verify says; None where it takes too long."""
    same = _math_verify()
    return _at_most(_SECONDS, lambda: same(answer, ground_truth))


@cache
def _math_verify() -> Callable[[str, str], bool]:
    """Whether two formulas are equal; called once here, so that what sympy loads late has no part in any deadline."""
    try:
        from math_verify import parse, verify
    except ImportError as error:
        raise ConfigError("math-verify is not installed", do="pip install 'purerl[math]'") from error
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)

    def same(answer: str, ground_truth: str) -> bool:
        one, other = (parse(f"${text}$", parsing_timeout=None) for text in (ground_truth, answer))
        return verify(one, other, timeout_seconds=None)

    same("x^2 + 2x + 1", "(x + 1)^2")
    return same


class _TooLongError(BaseException):
    """No Exception: sympy goes on after those."""


def _at_most(seconds: float, ask: Callable[[], bool]) -> float | None:
    """1 or 0, as `ask` says; None where that takes more than so many seconds of CPU time, wherever it is by then.

    By a signal, so only in a process's main thread. A busy machine does not change what is told. What is raised inside
    a finalizer Python reports and drops: it is raised again a tenth of the time later, and not reported.
    """
    within = True

    def ring(number: int, frame: FrameType | None) -> None:
        if within:
            raise _TooLongError

    def report(dropped: sys.UnraisableHookArgs) -> None:
        if not isinstance(dropped.exc_value, _TooLongError):
            reports(dropped)

    reports, sys.unraisablehook = sys.unraisablehook, report
    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds, seconds / 10)
    try:
        try:
            return float(ask())
        finally:
            within = False  # so that it does not ring in the lines below
    except _TooLongError:
        return None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        sys.unraisablehook = reports
