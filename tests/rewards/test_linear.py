"""Linear inequalities in one variable, and the words that can follow a number."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purerl.rewards.answers import Rules, is_correct, read_ground_truth
from purerl.rewards.answers.function_words import names_unit
from purerl.rewards.answers.linear import solve_linear
from purerl.rewards.answers.parser import parse


@pytest.mark.parametrize(
    ("text", "solved"),
    [
        ("x < 4", ("<", Fraction(4))),
        ("-x < 4", (">", Fraction(-4))),
        ("2x <= 5", ("<=", Fraction(5, 2))),
        ("3 > 1 - x", (">", Fraction(-2))),
        ("3x - 2 >= x + 4", (">=", Fraction(3))),
        (r"\frac{x}{2} + \frac{x}{3} > 5", (">", Fraction(6))),
        ("2(x + 1) != 6", ("!=", Fraction(2))),
        ("-2(1 - x)/3 < 4", ("<", Fraction(7))),
        ("(x + 1)(3) < 6", ("<", Fraction(1))),
    ],
)
def test_solved_inequality(text: str, solved: tuple[str, Fraction]) -> None:
    assert solve_linear(*parse(text).args) == solved


@pytest.mark.parametrize(
    "text",
    [
        *("x^2 < 4", "x y < 4", "x + y < 4", "x < x + 1", r"\frac{1}{x} < 1", r"\sqrt{x} < 2", "|x| < 3", "1 < 2"),
        *("2x = 10", "x(x - x) < 1", "i x < 3", r"\frac{x}{0} < 1"),
    ],
)
def test_inequality_that_is_not_linear_or_has_no_bound(text: str) -> None:
    assert solve_linear(*parse(text).args) is None


NUMBERS = st.integers(-9, 9)


@settings(max_examples=60, deadline=None)
@given(NUMBERS.filter(bool), NUMBERS, NUMBERS, NUMBERS.filter(bool), st.sampled_from(["<", r"\le", ">", r"\ge"]))
def test_inequality_is_equal_only_to_its_solution(slope: int, shift: int, right: int, other: int, name: str) -> None:
    answer = f"{slope}x + {shift} {name} {right}".replace("+ -", "- ")
    bound, flipped = Fraction(right - shift, slope), {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}[name]
    relation = name if slope > 0 else flipped
    assert is_correct(answer, read_ground_truth(f"x {relation} {bound}"), Rules())
    assert not is_correct(answer, read_ground_truth(f"x {relation} {bound + other}"), Rules())
    assert not is_correct(answer, read_ground_truth(f"x {name if relation == flipped else flipped} {bound}"), Rules())


@pytest.mark.parametrize(
    "words",
    [
        *("", "cm", "square cm", "miles per hour", "apples", "red balls", "students per class", "years old", "m^2"),
        *("of the pie", "dollars a day", "kilometers / hour", "a.m.", "people in the room", "wrong answers"),
    ],
)
def test_words_that_can_be_a_unit(words: str) -> None:
    assert names_unit(words)


@pytest.mark.parametrize(
    "words",
    [
        *(
            "is not the answer",
            "is wrong",
            "wrong",
            "(not sure)",
            "maybe",
            "at most",
            "or so",
            "I think",
            "more than x",
        ),
        *("exceeds the limit", "fails", "squared", "halves", "below zero", "hundred", "doesn\u2019t work", "?"),
        "a b c d e f g",
    ],
)
def test_words_that_are_no_unit(words: str) -> None:
    assert not names_unit(words)
