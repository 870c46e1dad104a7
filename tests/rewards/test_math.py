"""Rewards for numbers and letters: all GSM8K answers in common formats, AIME, tolerances, choices, ground truths."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from math import nan
from typing import Any

import pytest

from purerl.rewards.exact import exact_match
from purerl.rewards.math import aime, boxed, extract_number, gsm8k, has_boxed, math, multiple_choice, numeric
from tests.data.test_convert import PUBLISHED

FORMATS = {
    "hashes": "3 * 4 = 12, so\n#### {}",
    "box": r"So it is $\boxed{{{}}}$.",
    "phrase": "3 * 4 = 12. The answer is {}.",
    "letter A": "Q: how many?\nA: {}",
    "money": "{}${:,}.00",
    "sentence": "In total it is {}.",
    "units": "The answer is {} apples for 3 boxes.",
    "units in a box": r"\boxed{{{}\text{{ apples}}}}",
    "decimals": "#### {}.0",
    "thousands in a box": "{}\\boxed{{{:,}}}",
    "bold": "**Answer:** **{}**",
}
EXAMPLES = [  # in the format of GSM8K
    {"question": "Nine boxes of 8 pens?", "answer": "9 * 8 = <<9*8=72>>72 pens.\n#### 72"},
    {"question": "A debt of $5 and one of $2?", "answer": "It is -5 - 2 = <<-5-2=-7>>-7 dollars.\n#### -7"},
    {"question": "1000 steps and 80?", "answer": "1000 + 80 = <<1000+80=1080>>1080 steps.\n#### 1,080"},
    {"question": "None left?", "answer": "3 - 3 = <<3-3=0>>0.\n#### 0"},
]


def _format_number(template: str, number: int) -> str:
    """Write `number` with a template of `FORMATS`. With thousands separators, the sign precedes the currency symbol."""
    if template.startswith("{}") and ":," in template:
        sign = "-" if number < 0 else ""
        text = template[2:].format(abs(number))
        return text.replace("{", "{-") if sign and "boxed" in text else sign + text
    return template.format(number)


def _wrong_scores(rows: list[dict[str, str]], template: str) -> Iterator[tuple[str, str]]:
    """Completions with an incorrect score: a correct answer, with either minus sign, not 1; an incorrect one not 0."""
    for row in rows:
        expected = int(row["answer"].rpartition("####")[2].replace(",", ""))
        correct = _format_number(template, expected)
        scores = {
            correct: 1.0,
            correct.replace("-", "\u2212"): 1.0,
            _format_number(template, expected + 1): 0.0,
            _format_number(template, -expected or 5): 0.0,
        }
        yield from ((text, row["answer"]) for text, score in scores.items() if gsm8k(text, row) != score)


@pytest.mark.parametrize("name", FORMATS)
def test_only_correct_answers_score(name: str) -> None:
    assert list(_wrong_scores(EXAMPLES, FORMATS[name])) == []


@pytest.fixture(scope="module")
def gsm8k_rows() -> list[dict[str, str]]:
    directory = PUBLISHED / "gsm8k"
    if not directory.is_dir():
        pytest.skip("GSM8K is not available: set PURERL_TEST_DATA")
    files = (directory / "train.jsonl", directory / "test.jsonl")
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", FORMATS)
def test_only_correct_answers_score_on_complete_gsm8k(name: str, gsm8k_rows: list[dict[str, str]]) -> None:
    """Each answer in one of the formats, and negative ones in all."""
    assert len(gsm8k_rows) == 8792
    rows = gsm8k_rows[[*FORMATS].index(name) :: len(FORMATS)]
    rows += [row for row in gsm8k_rows if row["answer"].rpartition("####")[2].strip().startswith("-")]
    assert list(_wrong_scores(rows, FORMATS[name])) == []


def test_solutions_of_gsm8k_score_1(gsm8k_rows: list[dict[str, str]]) -> None:
    assert {gsm8k(row["answer"], row) for row in gsm8k_rows} == {1.0}


@pytest.mark.parametrize(
    ("completion", "answer", "score"),
    [
        (r"\boxed{18, 20}", "18", 0.0),
        (r"\boxed{18 or 20}", "18", 0.0),
        (r"The answer is 18, but \boxed{20}", "18", 0.0),
        (r"\boxed{x = 72}", "72", 1.0),
        (r"\boxed{72 apples}", "72", 1.0),
        (r"\boxed{72", "72", 1.0),
        ("", "0", 0.0),
        ("nothing", "0", 0.0),
        ("#### 72", r"72", 1.0),
        ("The answer is 18 or 20.", "18", 0.0),
        ("The answer is 18 or 20.", "20", 0.0),
        ("The answer is either 1 or 2 or 3.", "1", 0.0),
        ("The answer is 18 or so.", "18", 1.0),
        (r"\boxed{18} or \boxed{20}", "20", 0.0),
        (r"<think>\boxed{20}</think> \boxed{18}", "18", 1.0),
        (r"\boxed{9 \cdot 8}", "72", 0.0),
    ],
)
def test_last_answer_is_scored_and_it_must_be_a_single_number(completion: str, answer: str, score: float) -> None:
    assert gsm8k(completion, {"answer": answer}) == score


def test_ground_truth_in_the_column_of_verl() -> None:
    assert gsm8k("#### 72", {"reward_model": {"ground_truth": "72"}}) == 1.0
    with pytest.raises(KeyError):
        gsm8k("#### 72", {"question": "?"})
    with pytest.raises(ValueError, match="the ground truth is not a number: 'many'"):
        gsm8k("#### 72", {"answer": "many"})


@pytest.mark.parametrize(
    "answer", ["+72", "72 apples", "$72", "\u00a572", r"so \boxed{72}", 72, 72.0, "9 * 8\n#### 72"]
)
def test_ground_truth_number_may_have_a_format_of_answers(answer: Any) -> None:
    assert gsm8k("#### 72", {"answer": answer}) == numeric("#### 72", {"answer": answer}) == 1.0
    assert gsm8k("#### 73", {"answer": answer}) == numeric("#### 73", {"answer": answer}) == 0.0


@pytest.mark.parametrize("reward", [gsm8k, numeric, aime, math, boxed, multiple_choice, exact_match])
def test_missing_ground_truth_is_an_error(reward: Callable[[str, dict[str, Any]], float | None]) -> None:
    for missing in (None, nan):
        for row in ({"answer": missing}, {"answer": missing, "reward_model": {"ground_truth": missing}}):
            with pytest.raises(KeyError, match="neither an 'answer' nor"):
                reward(str(missing), row)
        row = {"answer": missing, "reward_model": {"ground_truth": 2.0}}
        completion = "C" if reward is multiple_choice else "2" if reward is exact_match else r"\boxed{2}"
        assert (reward(completion, row), reward("D", row)) == (1.0, 0.0)


def test_blank_ground_truth_is_an_error() -> None:
    with pytest.raises(ValueError, match="blank"):
        boxed(r"\boxed{}", {"answer": " "})


@pytest.mark.parametrize(
    ("completion", "number"),
    [
        ("#### Answer\n72", "72"),
        ("She needs 72 m^2 or, so to speak, m^{2}.", "72"),
        ("#### Final answer:\n72", "72"),
        ("#### Step 1: Add\n...\n#### Step 2: Multiply\n7*10=70\nThe answer is 70.", "70"),
        ("<think>The answer is 5?</think>\n<answer>72</answer>", "72"),
        ("<think>maybe the answer is 5?</think>\nShe sold 72 clips.", "72"),
        (r"<think>\boxed{5}</think> 72", "72"),
        ("<answer>\nx = 72\n</answer> in 3 steps", "72"),
        ("The answer is 72. This answer is right.", "72"),
        ("The answer is 12, since x = 9 and y = 3.", "12"),
        ("The answer is 10^3", "1000"),
        (r"The answer is $-\frac{1}{2}$.", "-1/2"),
        ("The answer is 3 1/2 cups.", "7/2"),
        (r"\boxed{1\frac{1}{2}}", "3/2"),
        (r"\boxed{72~\text{cm}}", "72"),
        (r"\boxed{5x} so 5", None),
        ("The answer is 1e5000", None),
        (r"\boxed{1e5000}", None),
    ],
)
def test_extract_number(completion: str, number: str | None) -> None:
    assert extract_number(completion) == number


@pytest.mark.parametrize(
    ("completion", "answer", "score"),
    [
        (r"\boxed{33}", "033", 1.0),
        (r"\boxed{033}", "33", 1.0),
        (r"\boxed{033}", 33, 1.0),
        ("**Answer:** 033", "033", 1.0),
        (r"so $m+n = \boxed{000}$", "0", 1.0),
        (r"\boxed{m + n = 33}", "33", 1.0),
        (r"\boxed{33.0}", "33", 1.0),
        (r"\boxed{\text{33}}", "33", 1.0),
        (r"\boxed{330}", "033", 0.0),
        (r"\boxed{33, 34}", "033", 0.0),
        (r"\boxed{33} or \boxed{34}", "034", 0.0),
        (r"\boxed{30+3}", "033", 0.0),
        ("There are 33 of them.", "033", 0.0),
        ("", "000", 0.0),
    ],
)
def test_aime_compares_integers(completion: str, answer: Any, score: float) -> None:
    assert aime(completion, {"answer": answer}) == score


@pytest.mark.parametrize("answer", ["1000", "-1", "1/2", "0.5", 12345])
def test_ground_truth_of_aime_is_an_integer_up_to_999(answer: Any) -> None:
    with pytest.raises(ValueError, match="the ground truth is not an integer from 0 to 999: "):
        aime(r"\boxed{1}", {"answer": answer})


def test_numeric_has_a_relative_tolerance() -> None:
    assert numeric("The answer is 0.333333333", {"answer": "1/3"}) == 1.0
    assert numeric("The answer is 0.33333", {"answer": "1/3"}) == 0.0
    assert numeric("no idea", {"answer": "0"}) == 0.0
    assert gsm8k("The answer is 0.333333333", {"answer": "1/3"}) == 0.0


def test_completion_without_a_box_scores_0() -> None:
    assert boxed("The answer is 5", {"answer": "5"}) == 0.0
    assert has_boxed("The answer is 5", {}) == has_boxed(r"\boxed{}", {}) == 0.0
    assert has_boxed(r"\boxed{5}", {}) == 1.0


@pytest.mark.parametrize(
    ("completion", "letter"),
    [
        ("The answer is (B).", "B"),
        ("the correct answer is **C**.", "C"),
        ("Answer: B) because A is wrong", "B"),
        (r"\boxed{\text{(D)}}", "D"),
        (r"\boxed{B. 12}", "B"),
        ("#### D", "D"),
        ("I think A is wrong.\n(D)", "D"),
        ("B", "B"),
        ("Answer: Because", None),
        ("The answer is C, I believe.", "C"),
        ("The answer is C and I am sure.", "C"),
        ("The correct answer is option C.", "C"),
        ("The answer is Choice C", "C"),
        ("Answer: Option C", "C"),
        ("So the correct option is C.", "C"),
        ("Option C is correct.", "C"),
        ("Option A is wrong. Option C is correct. Choice B is right, too? No: C is the best.", "C"),
        ("[C]", "C"),
        ("$C$", "C"),
        ('"C"', "C"),
        ("`C`", "C"),
        ("answer: (c)", "C"),
        ("c", "C"),
        ("<answer>C</answer>", "C"),
        (r"\boxed{\textbf{(C)}\ 12}", "C"),
        (r"\boxed{\textbf{C}}", "C"),
        ("C. Paris", "C"),
        ("(C) Paris", "C"),
        ("C) Paris", "C"),
        ("C. Washington D.C. it is", "C"),
        ("The answer is (C) A dog.", "C"),
        ("#### Answer\nC", "C"),
        ("The answer is clear.\nC", "C"),
        ("<think>The answer is A.</think>C", "C"),
        ("The answer is A because it is", "A"),
        ("The answer is A or B", None),
        ("The answer is A, B", None),
        ("(A) and (B)", None),
        ("Answer: A/B", None),
        ("Answer: A B", None),
        ("Answer: A and option B\nA", None),
        (r"\boxed{A, B}", None),
        (r"\boxed{AB}", None),
        ("A or B", None),
        ("A good answer is hard to find.", None),
        ("The answer is A good guess", None),
        ("The answer is I think B", None),
        ("Answer: I don't know", None),
        ("A. foo\nB. bar", None),
        ("A. foo B. bar", None),
        ("A: Paris", None),
        (r"\boxed{C_1}", None),
        ("", None),
    ],
)
def test_multiple_choice_scores_only_the_chosen_letter(completion: str, letter: str | None) -> None:
    scores = {answer: multiple_choice(completion, {"answer": answer}) for answer in "ABCD"}
    assert scores == {answer: float(answer == letter) for answer in "ABCD"}


@pytest.mark.parametrize(
    "answer", ["C", "(C)", "c", "C.", "(C) Paris", "C. Paris", r"\boxed{C}", "#### C", "The answer is C.", 2, "2", 2.0]
)
def test_ground_truth_letter_may_be_a_letter_or_an_index(answer: Any) -> None:
    assert multiple_choice("The answer is C.", {"answer": answer}) == 1.0
    assert multiple_choice("The answer is B.", {"answer": answer}) == 0.0


@pytest.mark.parametrize("answer", ["Paris", "", "A or B", "A good one", "26", -1, 2.5, True])
def test_ground_truth_without_a_letter_is_an_error(answer: Any) -> None:
    with pytest.raises(ValueError, match="the ground truth is not a letter: "):
        multiple_choice("The answer is A.", {"answer": answer})
