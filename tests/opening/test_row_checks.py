"""Rows with a ground truth that no completion can equal: named in an error before the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from purerl.data.examples import read_examples
from purerl.errors import DataError
from purerl.loop.train import train
from purerl.opening.row_checks import check_ground_truths
from purerl.rewards import math
from purerl.rewards.kinds import cosine_length, numeric
from purerl.rewards.kinds import math as math_kind
from purerl.rewards.kinds import verl as verl_kind
from purerl.rewards.runner import RewardRunner
from purerl.rewards.settings import Gate, Reward
from purerl.runs.dry_run import dry_run
from tests.data.made import user
from tests.data.runs import config, save_model

FORMULA = "purerl.rewards.math:math"


def _write(path: Path, *answers: Any, **columns: Any) -> str:
    rows = [{"prompt": [user(f"{k}")], "answer": answer, **columns} for k, answer in enumerate(answers)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def _check(path: str, *rewards: Any, gates: tuple[Any, ...] = (), **options: Any) -> None:
    runner = RewardRunner(rewards, gates, functions={}, timeout=1.0, num_workers=1)
    check_ground_truths(runner, read_examples([path], "prompts", **options))


def test_message_names_the_rows(tmp_path: Path) -> None:
    path = _write(tmp_path / "rows.jsonl", "5", ["72"], "x^2", "Answer is forty three.", "(1, 2)")
    with pytest.raises(DataError) as caught:
        _check(path, FORMULA)
    assert (
        str(caught.value)
        == f"""the reward '{FORMULA}' cannot score any completion of 2 of 5 rows: rows 1, 3 of {path!r}
  got:  the ground truth is neither a string nor a number: ['72']
  need: in each row a ground truth that an answer can equal
  do:   correct these rows, or remove them"""
    )


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (["72"], "neither a string nor a number: "),
        ([], "neither a string nor a number: "),
        ({"value": 72}, "neither a string nor a number: "),
        ('["72"]', "is a list of texts: "),
        ("['72', '73']", "is a list of texts: "),
        ("Answer is forty three.", "is a sentence"),
        ("The answer is blue.", "is a sentence"),
        ("It has no real root.", "is a sentence"),
        ("Proof as in the lecture of the week before the last one of May", "is a sentence"),
        ("", "is blank"),
        (None, "neither an 'answer' nor"),
        (r"\frac{1}{0}", "cannot be read: "),
        (r"\int_0^1 x dx", "cannot be read: "),
    ],
)
def test_ground_truth_that_no_completion_can_equal(tmp_path: Path, answer: Any, message: str) -> None:
    path = _write(tmp_path / "rows.jsonl", "5", answer)
    for reward in (FORMULA, "purerl.rewards.math:boxed", math_kind.Config(relative_tolerance=0.1)):
        with pytest.raises(DataError, match=rf"row 1 of .*\n  got:  .*{message}"):
            _check(path, reward)


@pytest.mark.parametrize(
    "answer",
    ["5", 5, 5.5, "The answer is 5.", "B", "east", "June 20", "no solution", "does not exist", "[1, 2]", "x is 5 or 6"],
)
def test_ground_truth_that_can_be_read(tmp_path: Path, answer: Any) -> None:
    _check(_write(tmp_path / "rows.jsonl", answer), FORMULA)


@pytest.mark.parametrize(
    ("reward", "answer", "message"),
    [
        ("purerl.rewards.math:gsm8k", "many", "is not a number: 'many'"),
        (numeric.Config(), "x + 1", r"is not a number: 'x \+ 1'"),
        ("purerl.rewards.math:aime", "1000", "is not an integer from 0 to 999: '1000'"),
        ("purerl.rewards.math:multiple_choice", "Paris", "is not a letter: 'Paris'"),
        ("purerl.rewards.turns:gsm8k_answer", "many", "is not a number: 'many'"),
        (cosine_length.Config(correctness=FORMULA, max_tokens=9), ["5"], "neither a string nor a number"),
    ],
)
def test_each_reward_checks_what_it_reads(tmp_path: Path, reward: Any, answer: Any, message: str) -> None:
    with pytest.raises(DataError, match=rf"row 1 of .*\n  got:  the ground truth .*{message}"):
        _check(
            _write(tmp_path / "rows.jsonl", "7" if reward != "purerl.rewards.math:multiple_choice" else "B", answer),
            reward,
        )


def test_gates_are_checked_and_functions_without_a_check_are_not(tmp_path: Path) -> None:
    path = _write(tmp_path / "rows.jsonl", ["5"])
    _check(path, "tests.loop.rewards:constant")
    with pytest.raises(DataError, match=r"the reward 'numbers' cannot score"):
        _check(path, "tests.loop.rewards:constant", gates=(Gate("purerl.rewards.math:gsm8k", name="numbers"),))
    runner = RewardRunner(
        [Reward("math.py:f", kwargs=None)], functions={"math.py:f": math.math}, timeout=1.0, num_workers=1
    )
    assert runner.find_problem({"answer": ["5"]}) is not None, "a function that was passed as an object"


def test_only_rows_to_which_a_reward_applies_are_checked(tmp_path: Path) -> None:
    path = _write(tmp_path / "rows.jsonl", "east", data_source="words")
    _check(path, Reward("purerl.rewards.math:gsm8k", data_source="numbers"))
    with pytest.raises(DataError, match="is not a number: 'east'"):
        _check(path, Reward("purerl.rewards.math:gsm8k", data_source="words"))
    numbers = _write(tmp_path / "numbers.jsonl", "east", data_source="openai/gsm8k")
    with pytest.raises(DataError, match="is not a number: 'east'"):
        _check(numbers, verl_kind.Config())
    _check(_write(tmp_path / "questions.jsonl", ["a", "b"], data_source="searchR1_nq"), verl_kind.Config())


def test_only_rows_that_are_used_are_checked(tmp_path: Path) -> None:
    path = _write(tmp_path / "rows.jsonl", "5", "6", ["7"])
    _check(path, FORMULA, limit=2)
    with pytest.raises(DataError, match="of 1 of 3 rows: row 2 of "):
        _check(path, FORMULA)


def test_run_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    save_model(tmp_path)
    settings = config(tmp_path, _write(tmp_path / "rows.jsonl", "5", ["6"]), rewards=(FORMULA,))
    for check in (lambda: dry_run(settings, None, fresh=False), lambda: train(settings, directory=tmp_path / "run")):
        with pytest.raises(DataError, match="cannot score any completion of 1 of 2 rows: row 1 of "):
            check()
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
