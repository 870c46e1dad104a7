"""The recipe `code` learns to write programs that pass tests, and only from its rewards."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from transformers import AutoTokenizer

from purerl.algos import grpo
from purerl.loop.train import Summary, train
from purerl.recipes.code import code, prepare, problems
from purerl.rewards.kinds.code import Config, build
from purerl.store.rollouts import read_rollouts

from .controls import train_with_shuffled_rewards
from .made import one_step, records


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return train(code(), directory=tmp_path_factory.mktemp("code") / "run")


@pytest.mark.slow
@pytest.mark.training
def test_rl_teaches_the_model_to_write_programs(run: Summary) -> None:
    assert run.before["eval/accuracy"] < 0.4
    assert run.after["eval/accuracy"] > 0.8
    assert all(record["reward/valid_fraction"] == 1 for record in records(run.directory)[1:])


@pytest.mark.slow
@pytest.mark.training
def test_shuffled_rewards_do_not(run: Summary, tmp_path: Path) -> None:
    control = train_with_shuffled_rewards(code(max_steps=20), run, tmp_path / "run")
    assert control.before == run.before
    assert control.after["eval/accuracy"] < control.before["eval/accuracy"] + 0.15
    assert records(run.directory)[20]["eval/accuracy"] > control.before["eval/accuracy"] + 0.3


def test_a_step(tmp_path: Path) -> None:
    """GRPO keeps all programs, even if none is rewarded."""
    config = one_step(code(max_steps=1), algorithm=grpo.Config(), batch_size=2, max_examples=2)
    summary = train(config, directory=tmp_path / "run")
    rows = read_rollouts(summary.directory / "rollouts", 1)
    assert len(rows) == 8
    assert records(summary.directory)[-1]["reward/valid_fraction"] == 1


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    prepare(folder, seed=5)
    return folder


def test_parentheses_decide_about_the_reward(prepared: Path) -> None:
    """Every demonstration with parentheses has the reward 1, and every one without them the reward 0."""
    tables = [parquet.read_table(prepared / f"{name}.parquet").to_pylist() for name in ("train", "demonstrations")]
    with closing(build(Config(timeout=20))) as reward:
        for example, demonstration in list(zip(*tables, strict=True))[:12]:
            assert example["prompt"] == demonstration["prompt"]
            completion = demonstration["completion"]
            assert reward.grade(completion, example).score == float("(" in completion), completion


def test_no_problem_can_be_solved_without_parentheses() -> None:
    found = list(problems())
    assert len(found) == len({problem.postfix for problem in found})
    for problem in found[::100]:
        points = [(a, b) for a in range(-9, 9) for b in range(-9, 9)]
        values = [[eval(text, {"a": a, "b": b}) for a, b in points] for text in (problem.infix, problem.plain)]
        assert values[0] != values[1]


def test_a_solution_fits_and_held_out_problems_are_not_trained_on(prepared: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(prepared / "model")
    rows = parquet.read_table(prepared / "demonstrations.parquet").to_pylist()
    assert max(len(tokenizer(row["completion"])["input_ids"]) + 1 for row in rows) == code().rollout.max_tokens
    assert all(tokenizer.pad_token_id not in tokenizer(row["prompt"])["input_ids"] for row in rows)
    train_set, held_out, demonstrations = (
        {row["prompt"] for row in parquet.read_table(prepared / f"{name}.parquet").to_pylist()}
        for name in ("train", "held_out", "demonstrations")
    )
    assert train_set == demonstrations
    assert len(train_set) > 8 * len(held_out) > 0
    assert not train_set & held_out
