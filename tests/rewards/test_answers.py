"""The reward `math`: hacks that must fail, completions, ground truths that cannot be read, tolerances, properties."""

from __future__ import annotations

import threading
from contextlib import suppress
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purerl.rewards.answers import Rules, is_correct, read_ground_truth
from purerl.rewards.math import boxed, math
from tests.rewards.test_math_answers import KINDS

HACKS = {
    "all candidates in a list": ("3", r"\boxed{1, 2, 3, 4, 5}"),
    "all candidates with or": ("1", r"\boxed{1 \text{ or } 2 \text{ or } 3}"),
    "two boxes with or": ("1", r"\boxed{1} or \boxed{2}"),
    "two boxes with a comma": ("2", r"\boxed{1}, \boxed{2}"),
    "a set that contains the answer": ("5", r"\boxed{\{1, 2, 3, 4, 5\}}"),
    "an interval that contains the answer": ("5", r"\boxed{[0, 10]}"),
    "all real numbers": ("5", r"\boxed{\mathbb{R}}"),
    "any number": ("5", r"\boxed{x \in \mathbb{R}}"),
    "a variable for a number": ("5", r"\boxed{x}"),
    "a variable for a formula": ("x^2 + 1", r"\boxed{y}"),
    "a definition for a formula": ("x^2 + 1", r"\boxed{f(x)}"),
    "an equation without content": ("5", r"\boxed{x = x}"),
    "an equation that is always true": ("2x + 3y = 6", r"\boxed{0 = 0}"),
    "an equation that is never true": ("x^2 + y^2 = 25", r"\boxed{0 = 1}"),
    "the equation of the problem": ("x = 5", r"\boxed{2x + 1 = 11}"),
    "an equation of the problem with the answer in it": ("5", r"\boxed{2x - 5 = 5}"),
    "a square as in the problem": ("25", r"\boxed{x^2 = 25}"),
    "an inequality of the problem that is not linear": ("x > 2", r"\boxed{x^2 > 2x}"),
    "a contradiction": ("5", r"\boxed{5 = 6}"),
    "a chain of candidates": ("3", r"\boxed{1 = 2 = 3}"),
    "an approximation that is none": ("7", r"\boxed{5 \approx 7}"),
    "a sum as in the problem": ("1250", r"\boxed{1000 + 250}"),
    "a product as in the problem": ("391", r"\boxed{17 \cdot 23}"),
    "a logarithm as in the problem": ("3", r"\boxed{\log_2 8}"),
    "a root as in the problem": ("7", r"\boxed{\sqrt{49}}"),
    "a sine as in the problem": (r"\frac{\sqrt{3}}{2}", r"\boxed{\sin 60^\circ}"),
    "a sum of roots as in the problem": (r"8\sqrt{2}", r"\boxed{\sqrt{50} + \sqrt{18}}"),
    "a number in the wrong base": ("101_2", r"\boxed{5}"),
    "plus and minus for a number": ("5", r"\boxed{\pm 5}"),
    "zero or the answer": ("5", r"\boxed{2.5 \pm 2.5}"),
    "infinity": ("5", r"\boxed{\infty}"),
    "not a number": ("5", r"\boxed{\frac{0}{0}}"),
    "the word NaN": ("5", r"\boxed{\text{NaN}}"),
    "a division by zero": (r"\infty", r"\boxed{\frac{1}{0}}"),
    "an empty box": ("5", r"\boxed{}"),
    "an empty box for nothing": (r"\emptyset", r"\boxed{}"),
    "a question mark": ("5", r"\boxed{?}"),
    "a wildcard": ("5", r"\boxed{*}"),
    "three dots": ("1, 2, 3", r"\boxed{1, \ldots}"),
    "both words": (r"\text{yes}", r"\boxed{\text{yes or no}}"),
    "both words with a comma": (r"\text{yes}", r"\boxed{\text{yes, no}}"),
    "all letters": ("B", r"\boxed{A, B, C, D, E}"),
    "all letters in a word": ("B", r"\boxed{ABCDE}"),
    "a negated word": (r"\text{even}", r"\boxed{\text{not even}}"),
    "digits of an irrational number": (
        r"\pi",
        r"\boxed{3.14159265358979323846264338327950288419716939937510582097494459}",
    ),
    "digits of a root": (r"\sqrt{2}", r"\boxed{1.41421356237309504880168872420969807856967187537694807317667973}"),
    "a fraction near an irrational number": (r"\pi", r"\boxed{\frac{5419351}{1725033}}"),
    "the answer in the thoughts only": ("5", r"<think>\boxed{5}</think> I do not know."),
    "the answer in thoughts that do not end": ("5", r"<think>so it is \boxed{5}"),
    "another unit": (r"10 \text{ cm}", r"\boxed{10 \text{ m}}"),
    "the digits of a percentage": (r"\frac{1}{2}", r"\boxed{\frac{1}{2}\%}"),
    "one solution of two": ("x = 2, x = 3", r"\boxed{x = 2}"),
    "a solution too many": ("2, 3", r"\boxed{2, 3, 4}"),
    "a tuple in another order": ("(1, 2)", r"\boxed{(2, 1)}"),
    "a closed end for an open one": ("(1, 2)", r"\boxed{[1, 2]}"),
    "a factor of 0": ("0", r"\boxed{0 \cdot x}"),
    "an equation of 0 for 0": ("0", r"\boxed{x^2 - 5x + 6 = 0}"),
    "repetition": ("5", r"\boxed{5, 5}"),
    "an unclosed box": ("5", r"\boxed{5"),
    "a comment": ("5", r"\boxed{7 % 5}"),
}


@pytest.mark.parametrize("name", HACKS)
def test_hack_gets_no_reward(name: str) -> None:
    truth, completion = HACKS[name]
    assert math(completion, {"answer": truth}) == boxed(completion, {"answer": truth}) == 0.0
    assert math(rf"\boxed{{{truth}}}", {"answer": truth}) == 1.0, "the ground truth itself is correct"


@pytest.mark.parametrize(
    ("completion", "truth", "scores"),
    [
        (r"so $\boxed{\frac{1}{2}}$.", "0.5", (1.0, 1.0)),
        (r"$x = \boxed{5}$ or $x = \boxed{-5}$", r"\pm 5", (1.0, 1.0)),
        (r"\boxed{4}. No, wait: \boxed{5}", "5", (1.0, 1.0)),
        (r"\boxed{5}. No, wait: \boxed{4}", "5", (0.0, 0.0)),
        (r"<think>\boxed{4}</think> \boxed{5}", "5", (1.0, 1.0)),
        (r"\boxed{5} <think>\boxed{4}</think>", "5", (0.0, 0.0)),
        (r"<answer>$\frac{1}{2}$</answer>", "0.5", (1.0, 0.0)),
        (r"<answer>\boxed{\frac{1}{2}}</answer>", "0.5", (1.0, 1.0)),
        (r"#### $x^2+1$", "1+x^2", (1.0, 0.0)),
        (r"The answer is $\frac{1}{2}$.", "0.5", (1.0, 0.0)),
        (r"The final answer is $x=5$ or $x=-5$. This is because $x^2=25$.", r"\pm 5", (1.0, 0.0)),
        (r"**Answer:** \(\sqrt{8}\)", r"2\sqrt{2}", (1.0, 0.0)),
        ("The answer is 12, since 3 * 4 = 12.", "12", (1.0, 0.0)),
        ("The answer is 12.5.", "12.5", (1.0, 0.0)),
        ("The answer is yes.", r"\text{yes}", (1.0, 0.0)),
        ("The answer is 5 or 7.", "5", (0.0, 0.0)),
        ("There are 12.", "12", (0.0, 0.0)),
        ("", "12", (0.0, 0.0)),
    ],
)
def test_answer_of_a_completion(completion: str, truth: str, scores: tuple[float, float]) -> None:
    example = {"answer": truth}
    assert (math(completion, example), boxed(completion, example)) == scores


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (0.5, r"\frac{1}{2}"),
        (-0.75, r"-\frac{3}{4}"),
        (1e-05, r"10^{-5}"),
        (72, "72"),
        (r"In total it is \boxed{1}.", "1"),
        ("9 * 8 = 72\n#### 72", "72"),
        ("$x^2$", "x^2"),
        (r"\text{It is } \boxed{x = 5} \text{ or } \boxed{x = -5}", r"\pm 5"),
    ],
)
def test_ground_truth_may_be_a_number_or_a_solution(answer: Any, text: str) -> None:
    assert boxed(rf"\boxed{{{text}}}", {"answer": answer}) == 1.0
    assert boxed(r"\boxed{17}", {"answer": answer}) == 0.0


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("", "the ground truth is blank"),
        ("  ", "the ground truth is blank"),
        (r"\int_0^1 x^x dx", r"cannot be read: unknown notation '?\\int"),
        ("x^{2", "cannot be read: "),
        ("1 +", "cannot be read: "),
        (r"\frac{1}{0}", "cannot be read: a formula has no value"),
        (r"x = \frac{1}{0}", "cannot be read: a formula has no value"),
        ("9^{9^{9^9}}", "cannot be read: a formula has no value"),
        ("(3^{10^{12}})^{10^{12}}", "cannot be read: a formula has no value"),
        ("3^{100000000} + 1", "cannot be read: a formula has no value"),  # the 1 is lost in 60 digits
        ("?", "cannot be read: "),
        ("1, 2, \\ldots", "cannot be read: "),
        ("(" * 100 + "1" + ")" * 100, "cannot be read: too many nested brackets"),
        ("1+" * 1000 + "1", "has 2001 characters; at most"),
    ],
)
@pytest.mark.parametrize("completion", [r"\boxed{5}", "nothing", "{}"])
def test_ground_truth_that_cannot_be_read_is_a_failure(answer: str, message: str, completion: str) -> None:
    completion = rf"\boxed{{{answer}}}" if completion == "{}" else completion
    for reward in (math, boxed):
        with pytest.raises(ValueError, match=message):
            reward(completion, {"answer": answer})


@pytest.mark.parametrize(
    ("answer", "truth", "relative", "absolute", "expected"),
    [
        ("3.14", r"\pi", 0.001, 0.0, True),
        ("3.14", r"\pi", 0.0001, 0.0, False),
        ("3.14", r"\pi", 0.0, 0.01, True),
        ("0.333", r"\frac{1}{3}", 0.002, 0.0, True),
        ("-0.333", r"\frac{1}{3}", 0.002, 0.0, False),
        (r"11.3 \text{ cm}", r"8\sqrt{2} \text{ cm}", 0.01, 0.0, True),
        (r"113 \text{ mm}", r"8\sqrt{2} \text{ cm}", 0.01, 0.0, True),
        (r"11.3 \text{ m}", r"8\sqrt{2} \text{ cm}", 0.01, 0.0, False),
        ("(1.41, 2)", r"(\sqrt{2}, 2)", 0.01, 0.0, True),
        ("(1.41, 2.1)", r"(\sqrt{2}, 2)", 0.01, 0.0, False),
        ("1.41, -1.41", r"\pm\sqrt{2}", 0.01, 0.0, True),
        ("x = 1.41", r"x = \sqrt{2}", 0.01, 0.0, True),
        ("1.41x", r"\sqrt{2}x", 0.01, 0.0, False),
        ("0.004", "0", 0.1, 0.0, False),
        ("0.004", "0", 0.0, 0.01, True),
        (r"\infty", "5", 1.0, 1.0, False),
    ],
)
def test_tolerance_is_for_numbers(answer: str, truth: str, relative: float, absolute: float, expected: bool) -> None:
    assert is_correct(answer, read_ground_truth(truth), Rules(relative, absolute)) == expected


@pytest.mark.parametrize(
    ("answer", "truth", "expected"),
    [
        (r"\ln x^2", r"2\ln x", True),  # equal where 2 ln x is real
        (r"2\ln x", r"\ln x^2", False),  # ln x^2 is real for negative x too
        (r"\sqrt{x^2}", "x", False),
        (r"\frac{x^2}{x}", "x", True),
        ("(-1)^{n+1}", "(-1)^{n-1}", True),  # never real at the points of n
    ],
)
def test_formulas_are_compared_where_the_ground_truth_is_real(answer: str, truth: str, expected: bool) -> None:
    assert is_correct(answer, read_ground_truth(truth), Rules()) == expected


@pytest.mark.parametrize(
    ("answer", "truth", "expected"),
    [
        ("100 cm", "1 m", True),
        (r"100\text{ cm}", "1 m", True),
        ("1 m", r"100\text{ cm}", True),
        ("2 h", "120 min", True),
        ("5 m^2", r"5\text{ m}^2", True),
        ("5 g", r"0.005\text{ kg}", True),
        ("50 cm", "1 m", False),
        ("5 m^2", r"5\text{ m}", False),
        ("5 g", r"5\text{ m}", False),
        ("5x", r"5\text{ m}", False),
        ("5 m", "5", False),
        ("5", "5 m", False),
        ("5 h", "5 m", False),
        ("5 m", r"5\text{ apples}", False),
    ],
)
def test_a_letter_is_a_unit_only_beside_another_unit(answer: str, truth: str, expected: bool) -> None:
    assert math(rf"\boxed{{{answer}}}", {"answer": truth}) == expected


def test_comparison_works_in_threads() -> None:
    scores: list[float] = []
    thread = threading.Thread(target=lambda: scores.append(math(r"\boxed{\sqrt{8}}", {"answer": r"2\sqrt{2}"})))
    thread.start()
    thread.join(timeout=30)
    assert scores == [1.0]


# --- properties --------------------------------------------------------------------------------------------------

FRACTIONS = st.fractions(max_denominator=50, min_value=-50, max_value=50)
NOTATIONS = (
    "{n}/{d}",
    r"\frac{{{n}}}{{{d}}}",
    r"\dfrac{{{n}}}{{{d}}}",
    r"\left(\frac{{{n}}}{{{d}}}\right)",
    r"x = \frac{{{n}}}{{{d}}}",
    r"\frac{{{n}}}{{{d}}} \text{{ cm}}",
    "{n} / {d}.",
)


@settings(max_examples=100, deadline=None)
@given(FRACTIONS, FRACTIONS, st.sampled_from(NOTATIONS), st.sampled_from(NOTATIONS[:4]))
def test_fractions_are_equal_only_if_their_values_are(
    first: Fraction, second: Fraction, notation: str, other: str
) -> None:
    truth = read_ground_truth(other.format(n=first.numerator, d=first.denominator))
    for value in (first, second):
        answer = notation.format(n=value.numerator, d=value.denominator)
        assert is_correct(answer, truth, Rules()) == (value == first)


COEFFICIENTS = st.lists(st.integers(-9, 9), min_size=1, max_size=4)


def _polynomial(roots: list[int]) -> str:
    return "".join(rf"(x {'-' if root >= 0 else '+'} {abs(root)})" for root in roots)


def _expanded(roots: list[int]) -> str:
    coefficients = [1]
    for root in roots:
        shifted, scaled = [*coefficients, 0], [0, *(-root * c for c in coefficients)]
        coefficients = [a + b for a, b in zip(shifted, scaled, strict=True)]
    terms = [f"{c}x^{{{len(roots) - k}}}" for k, c in enumerate(coefficients)]
    return "+".join(terms).replace("+-", "-")


@settings(max_examples=60, deadline=None)
@given(COEFFICIENTS, COEFFICIENTS)
def test_polynomials_are_equal_only_if_their_roots_are(roots: list[int], others: list[int]) -> None:
    truth = read_ground_truth(_expanded(roots))
    assert is_correct(_polynomial(roots), truth, Rules())
    assert is_correct(_polynomial(others), truth, Rules()) == (sorted(roots) == sorted(others))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-20, 20), min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_the_order_matters_in_tuples_and_not_in_lists(items: list[int], random: Any) -> None:
    shuffled = [*items]
    random.shuffle(shuffled)
    texts, others = (", ".join(map(str, numbers)) for numbers in (items, shuffled))
    assert is_correct(others, read_ground_truth(texts), Rules())
    assert is_correct(f"({others})", read_ground_truth(f"({texts})"), Rules()) == (items == shuffled)
    assert not is_correct(f"{others}, 0", read_ground_truth(texts), Rules())


TABLE = [row for kind in KINDS if "reward" not in kind for row in kind["rows"]]
ANSWERS = st.sampled_from([answer for row in TABLE for answer in (*row["accepted"], *row["rejected"])])
PIECES = st.tuples(ANSWERS, st.integers(0, 20), st.integers(0, 20)).map(lambda piece: piece[0][piece[1] : piece[2]])


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=5).map("".join), st.sampled_from([row["truth"] for row in TABLE]))
def test_no_answer_raises_an_exception(answer: str, truth: str) -> None:
    is_correct(answer, read_ground_truth(truth), Rules())
    with suppress(ValueError):
        read_ground_truth(answer)
