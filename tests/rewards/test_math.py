"""Grading: every gold answer of GSM8K in every usual format, formulas, letters; and what has no reward."""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from purerl.rewards.exact import exact_match
from purerl.rewards.math import boxed, gsm8k, has_boxed, multiple_choice, number_in, numeric
from tests.data.test_convert import PUBLISHED

FORMATS = {
    "hashes": "3 * 4 = 12, so\n#### {}",
    "box": r"So it is $\boxed{{{}}}$.",
    "phrase": "3 * 4 = 12. The answer is {}.",
    "letter A": "Q: how many?\nA: {}",
    "money": "{}${:,}.00",
    "full stop": "All in all it comes to {}.",
    "units": "The answer is {} apples for 3 boxes.",
    "units in a box": r"\boxed{{{}\text{{ apples}}}}",
    "decimals": "#### {}.0",
    "thousands in a box": "{}\\boxed{{{:,}}}",
    "bold": "**Answer:** **{}**",
}
WRITTEN = [  # in GSM8K's format, written for this test
    {"question": "Nine boxes of 8 pens?", "answer": "9 * 8 = <<9*8=72>>72 pens.\n#### 72"},
    {"question": "A debt of $5 and one of $2?", "answer": "It is -5 - 2 = <<-5-2=-7>>-7 dollars.\n#### -7"},
    {"question": "1000 steps and 80?", "answer": "1000 + 80 = <<1000+80=1080>>1080 steps.\n#### 1,080"},
    {"question": "None left?", "answer": "3 - 3 = <<3-3=0>>0.\n#### 0"},
]


def _said(form: str, number: int) -> str:
    """`number` in a format; where thousands are parted, the sign goes before the currency."""
    if form.startswith("{}") and ":," in form:
        sign = "-" if number < 0 else ""
        text = form[2:].format(abs(number))
        return text.replace("{", "{-") if sign and "boxed" in text else sign + text
    return form.format(number)


def _wrong(rows: list[dict[str, str]], form: str) -> Iterator[tuple[str, str]]:
    """What is graded wrongly: a gold answer, with either minus sign, that is not 1, or a perturbed one not 0."""
    for row in rows:
        gold = int(row["answer"].rpartition("####")[2].replace(",", ""))
        right = _said(form, gold)
        texts = {
            right: 1.0,
            right.replace("-", "\u2212"): 1.0,
            _said(form, gold + 1): 0.0,
            _said(form, -gold or 5): 0.0,
        }
        yield from ((text, row["answer"]) for text, score in texts.items() if gsm8k(text, row) != score)


@pytest.mark.parametrize("name", FORMATS)
def test_gold_answers_score_and_perturbed_ones_do_not(name: str) -> None:
    assert list(_wrong(WRITTEN, FORMATS[name])) == []


@pytest.fixture(scope="module")
def gsm8k_rows() -> list[dict[str, str]]:
    folder = PUBLISHED / "gsm8k"
    if not folder.is_dir():
        pytest.skip("GSM8K is not there: set PURERL_TEST_DATA to its folder")
    files = (folder / "train.jsonl", folder / "test.jsonl")
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", FORMATS)
def test_all_of_gsm8k(name: str, gsm8k_rows: list[dict[str, str]]) -> None:
    assert len(gsm8k_rows) == 8792
    assert list(_wrong(gsm8k_rows, FORMATS[name])) == []


def test_a_solution_of_gsm8k_is_its_own_answer(gsm8k_rows: list[dict[str, str]]) -> None:
    assert {gsm8k(row["answer"], row) for row in gsm8k_rows} == {1.0}


@pytest.mark.parametrize(
    ("completion", "gold", "score"),
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
    ],
)
def test_one_answer_is_given_and_it_is_the_last(completion: str, gold: str, score: float) -> None:
    assert gsm8k(completion, {"answer": gold}) == score


def test_the_gold_answer_may_stand_where_verl_has_it() -> None:
    assert gsm8k("#### 72", {"reward_model": {"ground_truth": "72"}}) == 1.0
    with pytest.raises(KeyError):
        gsm8k("#### 72", {"question": "?"})
    with pytest.raises(ValueError, match="the example's answer is no number: 'many'"):
        gsm8k("#### 72", {"answer": "many"})


@pytest.mark.parametrize("gold", ["+72", "72 apples", "$72", "\u00a572", r"so \boxed{72}", 72, 72.0, "9 * 8\n#### 72"])
def test_a_gold_number_is_read_as_an_answer_is(gold: Any) -> None:
    assert gsm8k("#### 72", {"answer": gold}) == numeric("#### 72", {"answer": gold}) == 1.0
    assert gsm8k("#### 73", {"answer": gold}) == numeric("#### 73", {"answer": gold}) == 0.0


@pytest.mark.parametrize("reward", [gsm8k, numeric, boxed, multiple_choice, exact_match])
def test_without_a_gold_answer_there_is_no_reward(reward: Callable[[str, dict[str, Any]], float | None]) -> None:
    for missing in (None, math.nan):
        for row in ({"answer": missing}, {"answer": missing, "reward_model": {"ground_truth": missing}}):
            with pytest.raises(KeyError, match="neither an 'answer' nor"):
                reward(str(missing), row)
        choice = {"answer": missing, "reward_model": {"ground_truth": 2.0}}
        said = "C" if reward is multiple_choice else "2" if reward is exact_match else r"\boxed{2}"
        assert (reward(said, choice), reward("D", choice)) == (1.0, 0.0)


def test_a_blank_formula_is_no_answer() -> None:
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
def test_the_number_that_is_meant(completion: str, number: str | None) -> None:
    assert number_in(completion) == number


def test_numbers_may_differ_by_a_millionth() -> None:
    assert numeric("The answer is 0.333333333", {"answer": "1/3"}) == 1.0
    assert numeric("The answer is 0.33333", {"answer": "1/3"}) == 0.0
    assert numeric("no idea", {"answer": "0"}) == 0.0
    assert gsm8k("The answer is 0.333333333", {"answer": "1/3"}) == 0.0


@pytest.mark.parametrize(
    ("answer", "gold", "score"),
    [
        (r"\frac{1}{2}", "0.5", 1.0),
        (r"\dfrac12", r"\frac{1}{2}", 1.0),
        ("(x+1)^2", "x^2 + 2x + 1", 1.0),
        ("(x+1)^2", "x^2 + 2x", 0.0),
        (r"2\sqrt{2}", r"\sqrt{8}", 1.0),
        (r"\{1, 2\}", r"\{2, 1\}", 1.0),
        ("(1, 2)", "(2, 1)", 0.0),
        ("(1, 2]", "(1,2]", 1.0),
        ("2x", "2", 0.0),
        (r"72\text{ cm}", "72", 1.0),
        (r"\text{east}", r"\text{East}", 1.0),
        ("1", r"All in all it is \boxed{1}.", 1.0),
        ("256", "2^{8}", 1.0),
        ("2^{5}", "2^{8}", 0.0),
        ("2^{3}", "2", 0.0),
        ("5^{n}", "5^{m}", 0.0),
        (r"-\frac{3}{4}", -0.75, 1.0),
        ("11/2", r"1\frac{1}{2}", 0.0),
        ("3/2", r"1\frac{1}{2}", 1.0),
        (r"\frac{21}{3}", r"2\frac{1}{3}", 0.0),
        ("1 2", "12", 0.0),
        ("1e5000", "1", 0.0),
        (r"2^{10^9}", "3x", None),
        ("1" + "+1" * 149, "150", 1.0),
        ("1" + "+1" * 150, "151", 0.0),
    ],
)
def test_formulas_are_compared_by_what_they_mean(answer: str, gold: Any, score: float | None) -> None:
    assert boxed(rf"So \boxed{{{answer}}}.", {"answer": gold}) == score


class Endless:
    """Something whose finalizer takes a while, where Python reports what is raised, and drops it."""

    def __del__(self) -> None:
        end = time.process_time() + 5.0
        while time.process_time() < end:
            pass


@pytest.mark.parametrize("finalizers", [1, 3])
def test_the_deadline_holds_in_finalizers_and_leaves_no_trace(finalizers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def same(answer: str, gold: str) -> bool:
        for _ in range(finalizers):
            Endless()
        while True:
            pass

    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    before = sys.unraisablehook, signal.getsignal(signal.SIGPROF)
    monkeypatch.setattr("purerl.rewards.math._math_verify", lambda: same)
    begin = time.process_time()
    assert boxed(r"\boxed{x}", {"answer": "y"}) is None
    assert time.process_time() - begin < 4.0, "a finalizer alone takes five seconds"
    assert (sys.unraisablehook, signal.getsignal(signal.SIGPROF)) == before
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
    assert not reported


def test_an_error_in_a_finalizer_is_reported_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __del__(self) -> None:
            raise ValueError("mine")

    def same(answer: str, gold: str) -> bool:
        Broken()
        return True

    seen: list[str] = []
    monkeypatch.setattr("purerl.rewards.math._math_verify", lambda: same)
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: seen.append(str(dropped.exc_value)))
    assert boxed(r"\boxed{x}", {"answer": "y"}) == 1.0
    assert seen == ["mine"]


def test_without_a_box_there_is_nothing_to_compare() -> None:
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
def test_letters(completion: str, letter: str | None) -> None:
    scores = {gold: multiple_choice(completion, {"answer": gold}) for gold in "ABCD"}
    assert scores == {gold: float(gold == letter) for gold in "ABCD"}


@pytest.mark.parametrize(
    "gold", ["C", "(C)", "c", "C.", "(C) Paris", "C. Paris", r"\boxed{C}", "#### C", "The answer is C.", 2, "2", 2.0]
)
def test_a_choice_is_a_letter_or_its_number(gold: Any) -> None:
    assert multiple_choice("The answer is C.", {"answer": gold}) == 1.0
    assert multiple_choice("The answer is B.", {"answer": gold}) == 0.0


@pytest.mark.parametrize("gold", ["Paris", "", "A or B", "A good one", "26", -1, 2.5, True])
def test_a_choice_that_names_no_letter_is_an_error(gold: Any) -> None:
    with pytest.raises(ValueError, match="the example's answer is no letter: "):
        multiple_choice("The answer is A.", {"answer": gold})
