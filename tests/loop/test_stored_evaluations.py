"""Stored completions of an evaluation and of a step: rewards, components and ground truth."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from attrs import evolve

from purerl.envs.settings import EnvironmentSettings
from purerl.loop.train import train
from purerl.report.completions import select_completions
from purerl.rewards.settings import Reward
from purerl.store.evaluations import read_evaluation, write_evaluation
from purerl.store.rollouts import read_rollouts

from .runs import records, train_until
from .small import fake

DIGITS, EVEN = "tests.loop.rewards:digits", "tests.loop.rewards:first_is_even"
FILES = {"new": "{run}/prepared/held_out.parquet", "old": "{run}/prepared/train.parquet"}


def _config(**changes: Any) -> Any:
    """Two data sets, two samples, two rewards, of which the second one decides."""
    sampled = {"samples_per_prompt": 2, "temperature": 1.0, "answer_extractor": "tests.loop.rewards:first_two"}
    evaluate = evolve(fake().evaluate, data=FILES, accuracy_reward="first_is_even", **sampled)
    return fake(evaluate=evaluate, rewards=(DIGITS, Reward(EVEN, 0.0)), **changes)


def _files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (directory / "evaluations").iterdir()}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(_config(), directory=tmp_path_factory.mktemp("stored") / "run").directory


def test_stored_completions_have_the_metrics_of_each_evaluation(directory: Path) -> None:
    evaluated = [record for record in records(directory) if "eval/accuracy" in record]
    assert [record["step"] for record in evaluated] == [0, 2, 4]
    assert sorted(_files(directory)) == ["000000.parquet", "000002.parquet", "000004.parquet"]
    for record in evaluated:
        rows = read_evaluation(directory / "evaluations", record["step"])
        for name in FILES:
            own = [row for row in rows if row["data_set"] == name]
            assert [(row["index"], row["attempt"]) for row in own] == [(i, k) for i in range(16) for k in range(2)]
            for metric, column in (
                ("accuracy", "correct"),
                ("reward", "reward"),
                ("reward/digits", "reward/digits"),
                ("reward/first_is_even", "reward/first_is_even"),
                ("length", "tokens"),
            ):
                assert fmean(row[column] for row in own) == pytest.approx(record[f"eval/{name}/{metric}"]), metric
            assert all(row["correct"] == (row["reward/first_is_even"] >= 1) for row in own)
            assert all(row["reward"] == row["reward/digits"] for row in own), "the other reward has weight 0"
            assert all(row["answer"] == (row["completion"][:2] or None) for row in own)


def test_ground_truth_and_components_of_every_rollout_are_stored(directory: Path) -> None:
    rows = [row for step in (1, 2, 3, 4) for row in read_rollouts(directory / "rollouts", step)]
    rows += read_evaluation(directory / "evaluations", 4)
    for row in rows:
        a, b = row["prompt"].rstrip("=").split("+")
        assert int(row["ground_truth"][::-1]) == int(a) + int(b)
        equal = zip(row["completion"], row["ground_truth"], strict=False)
        assert row["reward/digits"] == pytest.approx(sum(x == y for x, y in equal) / 3)
        assert row["reward/first_is_even"] == float(row["completion"][:1] in set("02468"))


def test_row_without_a_reward_has_no_components(tmp_path: Path) -> None:
    config = fake(rewards=("tests.loop.rewards:fails_on_odd_answers",), max_steps=1)
    workers = evolve(config.reward_workers, max_failure_rate=1.0)
    run = train(evolve(config, reward_workers=workers), directory=tmp_path / "run").directory
    stored = [*read_rollouts(run / "rollouts", 1), *read_evaluation(run / "evaluations", 1)]
    assert {(int(row["ground_truth"]) % 2, row["reward/fails_on_odd_answers"]) for row in stored} == {
        (0, 1.0),
        (1, None),
    }
    assert {row["correct"] for row in stored if "correct" in row} == {True, None}


@pytest.mark.slow
def test_evaluations_after_the_checkpoint_are_done_again_and_a_fresh_run_removes_all(tmp_path: Path) -> None:
    config, uninterrupted = _config(max_steps=6), tmp_path / "uninterrupted"
    config = evolve(config, checkpoint=evolve(config.checkpoint, every=4))
    train(config, directory=uninterrupted)
    train_until(3, config, directory=tmp_path / "run")
    assert sorted(_files(tmp_path / "run")) == ["000000.parquet", "000002.parquet"]
    (tmp_path / "run" / "evaluations" / "000002.parquet").write_bytes(b"a later state")
    train_until(5, config, directory=tmp_path / "run")
    later = tmp_path / "run" / "evaluations" / "000006.parquet"
    later.write_bytes(b"after the checkpoint")
    train_until(4, config, directory=tmp_path / "run")
    assert sorted(_files(tmp_path / "run")) == ["000000.parquet", "000002.parquet", "000004.parquet"]
    train(config, directory=tmp_path / "run")
    assert _files(tmp_path / "run") == _files(uninterrupted)
    train_until(1, config, directory=tmp_path / "run", fresh=True)
    assert sorted(_files(tmp_path / "run")) == ["000000.parquet"]


def test_run_directory_that_was_deleted_is_not_created_again(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_evaluation(tmp_path / "deleted" / "evaluations", 1, [])
    assert [*tmp_path.iterdir()] == []


def test_conversations_of_an_evaluation_are_stored_and_in_the_report(tmp_path: Path) -> None:
    environment = EnvironmentSettings(factory="tests.cli.games:Count", max_turns=2)
    summary = train(fake(max_steps=1, rewards=(), environment=environment), directory=tmp_path / "run")
    rows = read_evaluation(summary.directory / "evaluations", 1)
    messages = [json.loads(row["messages"]) for row in rows]
    assert [message["role"] for message in messages[0][:3]] == ["user", "user", "assistant"]
    shown = select_completions(summary.directory, max_bytes=10**6)["groups"][-1]
    assert shown["messages"] + shown["rows"][0]["messages"] in messages
    assert summary.after["eval/turns"] == fmean(
        sum(message["role"] == "assistant" for message in each) for each in messages
    )
