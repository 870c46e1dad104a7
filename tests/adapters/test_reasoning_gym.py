"""Data sets of reasoning-gym: files of problems, and their scores."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from purerl.adapters.reasoning_gym import _decode, _encode, read_entry, score, score_text, write
from purerl.data.files import digests, read_table
from purerl.errors import ConfigError
from purerl.rewards.adapters import RewardInput
from purerl.rewards.runner import RewardRunner

reasoning_gym = pytest.importorskip("reasoning_gym")
from reasoning_gym.factory import DATASETS  # noqa: E402

DATA_SETS = {"leg_counting": {"max_animals": 4}, "gcd": {}}


def _rows(path: Path, **changes: Any) -> list[dict[str, Any]]:
    write(path, **{"data_sets": DATA_SETS, "size": 5, "seed": 1} | changes)
    return read_table(path).to_pylist()


def test_file_has_the_problems_of_the_data_sets(tmp_path: Path) -> None:
    rows = _rows(tmp_path / "train.parquet")
    assert sorted(row["data_source"] for row in rows) == ["gcd"] * 5 + ["leg_counting"] * 5
    assert [row["data_source"] for row in rows] != sorted(row["data_source"] for row in rows), "in random order"
    assert len({row["prompt"][0]["content"] for row in rows}) == 10
    assert all(read_entry(row)["question"] == row["prompt"][0]["content"] for row in rows)
    assert _rows(tmp_path / "text.parquet", prompt=str)[0]["prompt"] == rows[0]["prompt"][0]["content"]


def test_same_arguments_give_the_same_file(tmp_path: Path) -> None:
    first, again, other = tmp_path / "1.parquet", tmp_path / "2.parquet", tmp_path / "3.parquet"
    program = "import sys; from purerl.adapters.reasoning_gym import write; write(sys.argv[1], {}, size=5, seed=1)"
    write(first, DATA_SETS, size=5, seed=1)
    command = [sys.executable, "-c", program.replace("{}", repr(DATA_SETS)), str(again)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "7"})
    write(other, DATA_SETS, size=5, seed=2)
    assert digests(first)[str(first)] == digests(again)[str(again)] != digests(other)[str(other)]


def test_answer_is_scored_by_the_data_set(tmp_path: Path) -> None:
    for row in _rows(tmp_path / "train.parquet"):
        assert score(f"<answer>0</answer> or <answer> {row['answer']} </answer>", row) == 1.0
        assert score("<answer>x</answer>", row) < 1.0
        assert score(row["answer"], row) == 0.0
        assert score_text(f" {row['answer']}\n", row) == 1.0


def test_scores_run_in_reward_workers(tmp_path: Path) -> None:
    rows = _rows(tmp_path / "train.parquet")
    name = "purerl.adapters.reasoning_gym:score"
    inputs = [RewardInput(str(k), f"<answer>{row['answer']}</answer>", row) for k, row in enumerate(rows)]
    with RewardRunner([name], functions={}, timeout=60.0, num_workers=1) as rewards:
        rewards.check_columns(rows[0].keys())
        assert [result.reward for result in asyncio.run(rewards.score(inputs))] == [1.0] * len(rows)
        with pytest.raises(ConfigError, match="reasoning_gym"):
            rewards.check_columns(["prompt", "answer"])


@pytest.mark.parametrize("name", sorted(set(DATASETS) - {"composite"}))
def test_stored_entry_is_the_entry(name: str) -> None:
    """For every data set: what is read from a file equals what the data set made, tuples and keys included."""
    entry = reasoning_gym.create_dataset(name, size=1, seed=3)[0]
    assert repr(_decode(json.loads(json.dumps(_encode(entry))))) == repr(_plain(entry))


def _plain(value: Any) -> Any:
    """`value` with the types that are read: dict, list, tuple, str, int, float."""
    if isinstance(value, dict):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value))
    return str(value) if isinstance(value, str) else value


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data_sets": {"leg_countin": {}}}, "did you mean 'leg_counting'"),
        ({"data_sets": {"gcd": {"max_animals": 3}}}, "max_animals"),
        ({"data_sets": {"leg_counting": {"min_animals": 9, "max_animals": 3}}}, "LegCountingConfig"),
        ({"data_sets": {}}, "0 data sets"),
        ({"size": 0}, "0 problems"),
    ],
)
def test_what_cannot_be_made_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        _rows(tmp_path / "train.parquet", **changes)
