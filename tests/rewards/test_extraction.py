"""Finding answers: the table of rules, which match is taken, what is a number; and text that was made to be slow."""

from __future__ import annotations

import time
from fractions import Fraction
from pathlib import Path

import pytest

from purerl.rewards.extraction import RULES, exact_number, extract, first_number, last_boxed
from purerl.rewards.math import boxed, gsm8k, has_boxed, multiple_choice, numeric

DOCS = Path(__file__).parents[2] / "docs" / "rewards.md"


@pytest.mark.parametrize("name", RULES)
def test_the_example_of_a_rule_is_true_and_stands_in_the_documentation(name: str) -> None:
    rule = RULES[name]
    assert rule.find(rule.example) == rule.answer
    example = rule.example.replace("\n", "⏎")
    assert f"| {name} | {rule.takes} | `{example}` | `{rule.answer}` |" in DOCS.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{1} then \boxed{2", "1"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{x \right)}", r"\left\{x \right)"),
        (r"\fboxed{ 3 }", "3"),
        (r"\boxed{}", ""),
        ("boxed 3", None),
        (r"\boxed{1}" + r"\boxed{" * 15, "1"),
        (r"\boxed{1}" + r"\boxed{" * 16, None),
    ],
)
def test_the_last_box_that_is_closed(text: str, found: str | None) -> None:
    assert last_boxed(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The answer is 5. No wait, the answer is 7.", "7."),
        ("#### 5\n#### 7\nthat is all", "7"),
        ("Answer:\n\n72 of them", "72 of them"),
        ("answer = 4", "4"),
        ("The answers are many", None),
        ("The answer is", None),
        ("I answered 5", None),
        ("x" * 9000 + "the answer is 5" + "x" * 9000, None),
    ],
)
def test_the_last_place_is_taken_and_only_the_end_is_read(text: str, found: str | None) -> None:
    assert extract(text, ["hashes", "phrase"]) == found


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("72", 72),
        ("72.", 72),
        ("-72", -72),
        ("\u221272", -72),
        ("-$72.50", Fraction(-145, 2)),
        ("$-72", -72),
        ("1,234,567.00", 1234567),
        (r"1{,}234", 1234),
        ("1\u202f234", 1234),
        ("12,34", None),
        ("1,2345", None),
        ("3/4 cup", Fraction(3, 4)),
        (r"\frac{-3}{4}", Fraction(-3, 4)),
        ("1/0", None),
        (r"6.5 \times 10^{3}", 6500),
        ("1e3", 1000),
        ("1e99999", None),
        ("9" * 65, None),
        (".5", Fraction(1, 2)),
        ("10-5", 10),
        ("2 + 3 = 5 or so", 5),
        ("x1", None),
        ("none", None),
    ],
)
def test_the_first_number_of_an_answer(text: str, number: Fraction | None) -> None:
    assert first_number(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (r"72\text{ apples}", 72),
        (r"45^\circ", 45),
        (r"50\%", 50),
        (r"\$1{,}234", 1234),
        ("2x", None),
        ("1, 2", None),
        ("(1,2)", None),
        ("5 or 7", None),
        ("x = 5", None),
    ],
)
def test_what_is_a_number_and_nothing_else(text: str, number: int | None) -> None:
    assert exact_number(text) == number


MEGABYTE = 2**20
HOSTILE = {
    "megabytes of digits": "9" * MEGABYTE,
    "megabytes of spaces": "answer" + " " * MEGABYTE + "is 5",
    "spaces and slashes": "1 /" * MEGABYTE,
    "commas": "1," * MEGABYTE,
    "minus signs": "-" * MEGABYTE,
    "thousands of boxes": r"\boxed{1}" * 100_000,
    "thousands of open boxes": r"\boxed{" * 100_000,
    "deep nesting": r"\boxed{" + "{" * 50_000 + "1" + "}" * 50_000 + "}",
    "deep nesting that fits": r"\boxed{" + "(" * 140 + "1" + ")" * 140 + "}",
    "fractions in fractions": r"\boxed{" + r"\frac{1}{" * 30 + "1" + "}" * 31,
    "empty lines": "\n" * MEGABYTE + "A",
    "stars": "**" * MEGABYTE + "answer" + "*" * MEGABYTE,
    "answers": "answer is " * 100_000,
    "hashes": "#" * MEGABYTE,
    "a tower": r"\boxed{9^{9^{9^{9}}}}",
    "a large power": r"\boxed{10^{10^{10}}}",
    "a large factorial": r"\boxed{(10^9)!}",
    "a long sum": r"\boxed{\sum_{n=1}^{10^{9}} \frac{1}{n}}",
    "an integral": r"\boxed{\int_0^1 x^x dx}",
    "a large exponent": "1e999999999",
    "letters": "(A)" * 100_000,
    "surrogates": "\ud800" * 1000 + r"\boxed{\ud800}",
    "zeros": "\0" * MEGABYTE,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_graded_or_refused_within_a_second(name: str) -> None:
    boxed(r"\boxed{x + x}", {"answer": "2x"})  # sympy is loaded
    for reward in (gsm8k, numeric, boxed, multiple_choice, has_boxed):
        begin = time.process_time()
        found = reward(HOSTILE[name], {"answer": "7"})
        assert time.process_time() - begin < 1.0
        assert found in (0.0, None) or reward is has_boxed
