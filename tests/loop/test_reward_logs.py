"""Reward functions of other libraries: the arguments that they get from a run, and the values that they log in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve

from purerl.data.settings import Data
from purerl.loop.train import train
from purerl.store.evaluations import read_evaluation
from purerl.store.rollouts import read_rollouts
from tests.data.made import write
from tests.data.runs import EVALUATE, config, save_model, verl_rows

from .runs import records
from .small import fake

TRL, VERL, OPENRLHF = (f"tests.loop.rewards:{name}" for name in ("logs_progress", "grades", "query_length"))


def test_progress_and_logs_of_a_function_of_trl(tmp_path: Path) -> None:
    evaluate = evolve(fake().evaluate, every=2)
    summary = train(fake(rewards=(TRL,), evaluate=evaluate, max_steps=4), directory=tmp_path / "run")
    first, *steps = records(summary)
    assert [record["logged/progress"] for record in steps] == [0.0, 0.25, 0.5, 0.75], "steps before the current one"
    assert 0 < 2 * steps[1]["logged/epoch"] == pytest.approx(steps[2]["logged/epoch"])
    evaluated = {
        record["step"]: record["eval/logged/progress"] for record in [first, *steps] if "eval/accuracy" in record
    }
    assert evaluated == {0: 0.0, 2: 0.5, 4: 1.0}
    for row in read_rollouts(summary.directory / "rollouts", 2):
        assert row["logged/tokens"] == str(sum(row["action"]))
    for row in read_evaluation(summary.directory / "evaluations", 4):
        assert row["logged/tokens"] == str(row["tokens"])


def test_entries_of_a_function_of_verl_are_logged(tmp_path: Path) -> None:
    save_model(tmp_path)
    data = Data(files=(write(tmp_path / "rows.parquet", verl_rows(9)),))
    evaluate = evolve(EVALUATE, data=write(tmp_path / "problems.jsonl", verl_rows(2)))
    settings = config(tmp_path, data, rewards=(VERL,), evaluate=evaluate, max_steps=1)
    summary = train(settings, directory=tmp_path / "run")
    rows = read_rollouts(summary.directory / "rollouts", 1)
    assert [row["logged/pred"] for row in rows] == [row["completion"] for row in rows]
    correct = [row["completion"][:1] < "5" for row in rows]
    assert [row["logged/acc"] for row in rows] == [str(value) for value in correct]
    record = records(summary)[1]
    assert record["logged/acc"] == pytest.approx(sum(correct) / len(correct))
    assert record["reward/grades"] == record["reward/mean"] == 0.5
    assert "eval/logged/acc" in record


def test_a_function_of_openrlhf_gets_the_query_with_special_tokens(tmp_path: Path) -> None:
    save_model(tmp_path)
    data = Data(files=(write(tmp_path / "rows.parquet", verl_rows(9)),))
    settings = config(tmp_path, data, rewards=(OPENRLHF,), max_steps=2)
    summary = train(settings, directory=tmp_path / "run")
    for row in read_rollouts(summary.directory / "rollouts", 1):
        query = row["logged/queries"]
        assert query.startswith(row["prompt"])
        assert query.count("<|im_start|>") >= 2, "special tokens of the completion are there too"
        assert sum(row["reward"]) == query.endswith("<eos>") == (row["finish"] == "stop")
    assert records(summary)[1]["logged/scores"] == 1.0
