"""Labeled answers: those of answer_labels.toml, which purerl did not write, and of answer_kinds.toml, by kind."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from purerl.rewards.answers import Rules
from purerl.rewards.math import aime, boxed, gsm8k, math, multiple_choice, numeric

FOLDER = Path(__file__).parent
LABELS = [tuple(row) for row in tomllib.loads((FOLDER / "answer_labels.toml").read_text(encoding="utf-8"))["labels"]]
KINDS = tomllib.loads((FOLDER / "answer_kinds.toml").read_text(encoding="utf-8"))["kinds"]
DIFFERENT = [(r"\(\boxed{\log_2 8}\)", "3", 1)]
"""The labels that purerl does not agree with: arithmetic must be done, because a model could repeat the problem."""


@pytest.mark.parametrize(("completion", "truth", "right"), LABELS)
def test_reward_is_the_label(completion: str, truth: str, right: int) -> None:
    example, is_different = {"answer": truth}, (completion, truth, right) in DIFFERENT
    assert math(completion, example) == (right != is_different)
    assert math(completion, example, rules=Rules(evaluated=False)) == right


def test_at_most_one_label_differs() -> None:
    assert len(DIFFERENT) == 1
    assert {*DIFFERENT} <= {*LABELS}
    counts = Counter(right for *_, right in LABELS)
    assert counts == {1: 63, 0: 30}


@pytest.mark.parametrize("kind", KINDS, ids=[kind["name"] for kind in KINDS])
def test_reward_of_each_answer_of_a_kind(kind: dict[str, Any]) -> None:
    wrong = [row for row in kind["labels"] if math(row[0], {"answer": row[1]}) != row[2]]
    assert wrong == []
    for accepted in (0, 1):
        assert sum(right == accepted for *_, right in kind["labels"]) >= 3, "several of each"


@pytest.mark.parametrize(
    ("completion", "letter"),
    [
        (r"\boxed{A = \pi r^2}", None),
        (r"\boxed{B + 1}", None),
        (r"\boxed{C(n,2)}", None),
        (r"\boxed{E=mc^2}", None),
        (r"\boxed{C \sqrt{2}}", None),
        (r"\boxed{A \cdot B}", None),
        (r"\boxed{A \le 3}", None),
        (r"\boxed{D - 4}", None),
        (r"\boxed{x^2}", None),
        (r"\boxed{A'}", None),
        (r"\boxed{\frac{A}{B}}", None),
        (r"\boxed{2A}", None),
        (r"\boxed{A} or \boxed{B}", None),
        (r"So it is B = \boxed{12}", None),
        (r"The answer is (B). \boxed{\frac12}", "B"),
        (r"\boxed{A^2+B^2}. The answer is C.", "C"),
        (r"\boxed{\textbf{(C)}\ 14}", "C"),
        (r"\boxed{C. x^2}", "C"),
        (r"\boxed{(C) x^2}", "C"),
        (r"\boxed{B - Paris}", "B"),
        (r"\boxed{C\ 14}", "C"),
        (r"\fbox{D}", "D"),
        (r"\boxed B", "B"),
        (r"\boxed{D}. I used \boxed{}.", "D"),
        (r"\boxed{12 \text{ (C)}}", "C"),
        (r"\boxed{\frac12\ \textbf{(B)}}", "B"),
        (r"\boxed{x = 3 \text{ (D)}}", "D"),
        (r"\boxed{12 \text{ (C)} \text{ or } 13 \text{ (D)}}", None),
        (r"\boxed{P(A)}", None),
        (r"\boxed{A \text{ or } \text{(B)}}", None),
    ],
)
def test_formula_in_a_box_is_no_letter(completion: str, letter: str | None) -> None:
    scores = {answer: multiple_choice(completion, {"answer": answer}) for answer in "ABCDE"}
    assert scores == {answer: float(answer == letter) for answer in "ABCDE"}


@pytest.mark.parametrize(
    ("completion", "truth", "score"),
    [
        (r"\boxed{15 \text{ minutes}}", "15", 1.0),
        (r"\boxed{15 \text{ is not the answer}}", "15", 0.0),
        (r"\boxed{\text{15 is wrong}}", "15", 0.0),
        (r"\boxed{\text{not } 15}", "15", 0.0),
        (r"\boxed{15 not}", "15", 0.0),
        (r"\boxed{15 of them}", "15", 1.0),
        (r"\fbox{15}", "15", 1.0),
        (r"\boxed 15", "15", 1.0),
        (r"\boxed{15}. \boxed{}", "15", 1.0),
        ("The answer is not 15.", "15", 0.0),
        (r"\boxed{x = 2} or \boxed{x = 3}", "3", 0.0),
        (r"\boxed{x = 2, y = 3}", "3", 0.0),
        (r"\boxed{9 * 8 = 72}", "72", 1.0),
        ("\\boxed{72}\n\n\\boxed{72}", "72", 1.0),
        ("\\boxed{71}\n\n\\boxed{72}", "72", 0.0),
    ],
)
def test_boxes_and_units_of_numbers(completion: str, truth: str, score: float) -> None:
    assert {reward(completion, {"answer": truth}) for reward in (gsm8k, numeric, aime)} == {score}


def test_box_is_needed_by_boxed_in_all_notations() -> None:
    for completion in (r"\boxed{5}", r"\fbox{5}", r"\boxed 5", r"\(\boxed{5}\), **\(\boxed{5}\)**"):
        assert boxed(completion, {"answer": "5"}) == 1.0
    assert boxed("Answer: The smallest is 5.", {"answer": "5"}) == 0.0
