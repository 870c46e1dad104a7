"""Extraction of answers: the table of rules, the selected match, and adversarial text."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from purerl.rewards.boxes import last_boxed
from purerl.rewards.extraction import RULES, extract
from purerl.rewards.math import aime, boxed, gsm8k, has_boxed, math, multiple_choice, numeric

DOCS = Path(__file__).parents[2] / "docs" / "how-to" / "rewards.md"


@pytest.mark.parametrize("name", RULES)
def test_example_of_a_rule_is_correct_and_documented(name: str) -> None:
    rule = RULES[name]
    assert next(iter(rule.find(rule.example))) == rule.answer
    example = rule.example.replace("\n", "⏎")
    line = f"| {name} | {rule.description} | `{example}` | `{rule.answer}` |"
    assert line in DOCS.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    ("text", "expected"),
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
        (r"$x = \boxed{2}$ or $x = \boxed{3}$", "2 or 3"),
        (r"\boxed{1}, \boxed{2}, and \boxed{3}.", "1 or 2 or 3"),
        (r"\boxed{5} \text{ and } \boxed{-5}", "5 or -5"),
        (r"\boxed{5},\quad \boxed{7}", "5 or 7"),
        (r"\boxed{1}. So the answer is \boxed{2} or \boxed{3}", "2 or 3"),
        (r"\boxed{1} is wrong, and \boxed{2} is right", "2"),
        (r"\boxed{1} \boxed{2}", "1 or 2"),
        (r"\boxed{1}\boxed{1}", "1"),
        (r"**\(\boxed{1}\)**, __\(\boxed{2}\)__", "1 or 2"),
        ("- $\\boxed{1}$\n- $\\boxed{2}$", "1 or 2"),
        ("1. \\[\\boxed{3}\\]\n2. \\[\\boxed{4}\\]", "3 or 4"),
        (r"`\boxed{1}` & $x_{2} = \boxed{2}$", "1 or 2"),
        (r"\boxed{x = 1} and \boxed{y = 2}", "x = 1, y = 2"),
        (r"\boxed{1} is 1, \boxed{2}", "2"),
        (r"\boxed{1}. \boxed{2}", "2"),
        (r"\boxed{5}, not \boxed{6}", "5"),
        (r"not \(\boxed{6}\)", ""),
        (r"\fbox{3}", "3"),
        (r"\framebox{3} or \fbox 4", "3 or 4"),
        (r"\boxed 5", "5"),
        (r"$\boxed x^2 + 1$ m", "x^2 + 1"),
        (r"\boxed -1.5. So", "-1.5"),
        (r"\boxed\frac12, or \boxed 3", r"\frac12 or 3"),
        (r"\boxed 5 or 6", "5 or 6"),
        (r"\boxed{5} in \boxed notation", "5"),
        (r"\boxed{5}, in \boxed{}", "5"),
        (r"\boxed{5}, as \boxed{ \ldots }", "5"),
        (r"\boxed{5}, as \boxed{\text{your answer}}", "5"),
        (r"\boxed{ }", ""),
    ],
)
def test_last_boxed_returns_the_last_balanced_box(text: str, expected: str | None) -> None:
    assert last_boxed(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The answer is 5. No wait, the answer is 7.", "7."),
        ("#### 5\n#### 7\nthat is all", "7"),
        ("Answer:\n\n72 of them", "72 of them"),
        ("answer = 4", "4"),
        ("The answers are many", None),
        ("The answer is", None),
        ("I answered 5", None),
        ("#### Answer\n72", None),
        ("#### 5\n#### Step 2: add", "5"),
        ("#### 5\n#### 2. Add", "5"),
        ("**Answer:**\n- 72 apples\n- 6 pears", "72 apples"),
        ("<think>The answer is 5.</think>", None),
        ("<think>The answer is 5.</think> The answer is 7.", "7."),
        ("<think>The answer is 5.", None),
        ("The answer is 7. <think>The answer is 5.", "7."),
        ("The answer is 7.</think> <think>The answer is 5.", None),
        ("x" * 9000 + "the answer is 5" + "x" * 9000, None),
    ],
)
def test_extract_returns_the_last_match_at_the_end_of_the_text(text: str, expected: str | None) -> None:
    assert extract(text, ["hashes", "phrase"]) == expected


MEGABYTE = 2**20
ADVERSARIAL = {
    "megabytes of digits": "9" * MEGABYTE,
    "megabytes of spaces": "answer" + " " * MEGABYTE + "is 5",
    "spaces and slashes": "1 /" * MEGABYTE,
    "commas": "1," * MEGABYTE,
    "minus signs": "-" * MEGABYTE,
    "thousands of boxes": r"\boxed{1}" * 100_000,
    "thousands of open boxes": r"\boxed{" * 100_000,
    "thousands of boxes without braces": r"\boxed 1 " * 100_000,
    "delimiters between boxes": r"\boxed{3}" + r"\) **, " * 1000 + r"\boxed{4}",
    "labels between boxes": r"\boxed{1}" + "\n- x = " * 1000 + r"\boxed{2}",
    "spaces after a box": r"\boxed" + " " * MEGABYTE,
    "a box without an end": r"\boxed (" * 10_000,
    "negated boxes": r"not \boxed{7} " * 10_000,
    "a long sentence": "Answer: The " + "very " * 1600 + "large one is 8.",
    "a sentence of sentences": "Answer: it " + "is " * 2500 + "8",
    "formulas in a sentence": "Answer: The " + "$x$ " * 1900 + "is 8",
    "equations in a box": r"\boxed{" + "x=1, " * 110 + "x=1}",
    "unknowns in a box": r"\boxed{" + ",".join(f"x_{{{k}}}=1" for k in range(60)) + "}",
    "a linear inequality of many terms": r"\boxed{" + "+x" * 130 + "<8}",
    "nested factors of an inequality": r"\boxed{" + "(x+1)" * 50 + "<8}",
    "a large slope": r"\boxed{10^{10^{10}} x < 8}",
    "digits in a base": r"\boxed{" + "1" * 590 + "_2}",
    "a large base": r"\boxed{11_{" + "9" * 580 + "}}",
    "letters of choices in a box": r"\boxed{" + "(A) " * 140 + "}",
    "words after a number": r"\boxed{8 \text{" + "very " * 110 + "}}",
    "deep nesting": r"\boxed{" + "{" * 50_000 + "1" + "}" * 50_000 + "}",
    "deep nesting within the limit": r"\boxed{" + "(" * 140 + "1" + ")" * 140 + "}",
    "fractions in fractions": r"\boxed{" + r"\frac{1}{" * 30 + "1" + "}" * 31,
    "empty lines": "\n" * MEGABYTE + "A",
    "stars": "**" * MEGABYTE + "answer" + "*" * MEGABYTE,
    "answers": "answer is " * 100_000,
    "hashes": "#" * MEGABYTE,
    "a power tower": r"\boxed{9^{9^{9^{9}}}}",
    "a tower of exponentials": r"\boxed{e^{e^{e^{e^{e^{9}}}}}}",
    "a tower of factorials": r"\boxed{((((9!)!)!)!)!}",
    "a large binomial coefficient": r"\boxed{\binom{10^{40}}{10^{39}}}",
    "a function of a large number": r"\boxed{\sin 10^{10^{9}}}",
    "a root of a large degree": r"\boxed{\sqrt[10^{99}]{2}}",
    "a long list": r"\boxed{" + "1," * 290 + "1}",
    "many signs": r"\boxed{" + r"\pm 1 " * 60 + "}",
    "a large matrix": r"\boxed{\begin{pmatrix}" + r"1 & 2 \\ " * 40 + r"\end{pmatrix}}",
    "sets in sets": r"\boxed{" + r"\{" * 60 + "1" + r"\}" * 60 + "}",
    "groups in texts": r"\boxed{" + r"\text{" * 60 + "1" + "}" * 60 + "}",
    "absolute values": r"\boxed{" + "|" * 250 + "1}",
    "roots in roots": r"\boxed{" + r"\sqrt" * 150 + "7}",
    "functions of functions": r"\boxed{" + r"\sin" * 150 + "7}",
    "fractions without braces": r"\boxed{" + r"\frac" * 150 + "7" * 150 + "}",
    "signs of signs": r"\boxed{" + "-" * 250 + "7}",
    "factorials": r"\boxed{7" + "!" * 280 + "}",
    "a sum of many terms": r"\boxed{" + "1+" * 140 + "1}",
    "superscripts": r"\boxed{" + "2^" * 150 + "2}",
    "megabytes in a box": r"\boxed{" + "1+" * (5 * MEGABYTE) + "1}",
    "unions": r"\boxed{" + r"(0,1)\cup" * 60 + "(0,1)}",
    "dollars": r"\boxed{" + "$" * 500 + "8}",
    "spaces in a box": r"\boxed{7" + " " * 590 + "x}",
    "a large power": r"\boxed{10^{10^{10}}}",
    "a large factorial": r"\boxed{(10^9)!}",
    "a long sum": r"\boxed{\sum_{n=1}^{10^{9}} \frac{1}{n}}",
    "an integral": r"\boxed{\int_0^1 x^x dx}",
    "a large exponent": "1e999999999",
    "a large number": r"\boxed{1e5000}",
    "a large power of a number": r"\boxed{" + "9" * 60 + "^{99999999}}",
    "letters": "(A)" * 100_000,
    "letters in lines": "A\n" * 100_000 + "nothing else",
    "labels": "A. " * 100_000,
    "options": ". A is right" * 100_000,
    "many units": r"\boxed{5 " + "ab/" * 2700 + "!}",
    "letters of a unit": r"\boxed{5 " + "m" * 8000 + "!}",
    "spaces of a unit": r"\boxed{5 km" + " " * 8000 + "!}",
    "answers and a long line": "answer is " * 16 + "x, " * 2650,
    "clauses": "answer is " + "because " * 1000,
    "mixed numbers": "answer is " + "1 1 " * 2000,
    "signs and spaces": "= " * 2000 + "- " * 2000,
    "think tags": "</think>" * 100_000 + "<answer>" * 100_000,
    "surrogates": "\ud800" * 1000 + r"\boxed{\ud800}",
    "zeros": "\0" * MEGABYTE,
}


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_adversarial_text_is_scored_in_seconds(name: str) -> None:
    boxed(r"\boxed{\sqrt{x^2}}", {"answer": "2x"})  # loads mpmath
    for reward in (gsm8k, numeric, aime, boxed, math, multiple_choice, has_boxed):
        for answer in ("7",) if reward is not math else ("7", "2x", r"7\sqrt{2}", "1, 2", "(1, 2)", "x < 7"):
            start = time.process_time()
            score = reward(ADVERSARIAL[name], {"answer": "C" if reward is multiple_choice else answer})
            assert time.process_time() - start < 2.0, "backtracking takes minutes"
            assert score == 0.0 or reward is has_boxed
