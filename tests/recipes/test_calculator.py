"""The recipe `calculator` learns to call its tool, and only from its rewards."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from transformers import AutoTokenizer

from purerl.algos import grpo
from purerl.loop.train import Summary, train
from purerl.recipes.calculator import calc, calculator, prepare
from purerl.store.rollouts import read_rollouts

from .controls import train_with_shuffled_rewards
from .made import one_step, records


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return train(calculator(), directory=tmp_path_factory.mktemp("calculator") / "run")


@pytest.mark.slow
@pytest.mark.training
def test_rl_teaches_the_model_to_use_the_tool(run: Summary) -> None:
    first, last = records(run.directory)[1], records(run.directory)[-1]
    assert run.before["eval/accuracy"] < 0.3
    assert run.after["eval/accuracy"] > 0.9
    assert first["environment/tool_calls"] < 0.5
    assert last["environment/tool_calls"] > 0.9


@pytest.mark.slow
@pytest.mark.training
def test_shuffled_rewards_do_not(run: Summary, tmp_path: Path) -> None:
    control = train_with_shuffled_rewards(calculator(max_steps=20), run, tmp_path / "run")
    assert control.before == run.before
    assert control.after["eval/accuracy"] < control.before["eval/accuracy"] + 0.15
    assert records(run.directory)[20]["eval/accuracy"] > control.before["eval/accuracy"] + 0.3


def test_a_step_of_episodes(tmp_path: Path) -> None:
    """GRPO keeps all episodes, even if none is rewarded."""
    config = one_step(calculator(max_steps=1), algorithm=grpo.Config(), batch_size=4, max_examples=4)
    summary = train(config, directory=tmp_path / "run")
    rows = read_rollouts(summary.directory / "rollouts", 1)
    assert len(rows) == 16
    assert all(json.loads(row["messages"])[0]["content"].endswith("=") for row in rows)
    assert records(summary.directory)[-1]["reward/valid_fraction"] == 1


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("47*86", "4042="),
        ("1*1", "1="),
        ("47*", "?="),
        ("47", "?="),
        ("4*8*6", "?="),
        ("*" * 9, "?="),
        ("9999*9", "?="),
    ],
)
def test_the_tool_multiplies_or_answers_that_it_cannot(expression: str, result: str) -> None:
    assert asyncio.run(calc(expression)) == result


def test_demonstrations_are_the_turns_of_an_episode(tmp_path: Path) -> None:
    """The text that the model is trained on has the tokens of an episode: those of the turns end with <eos>."""
    prepare(tmp_path, seed=1)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    rows = parquet.read_table(tmp_path / "demonstrations.parquet").to_pylist()
    calls = {row["prompt"]: row["completion"] for row in rows if row["completion"].startswith("<calc>")}
    answers = {row["prompt"]: row["completion"] for row in rows if row["prompt"].count("=") == 2}
    assert len(calls) == len(answers) == 1041
    for prompt, call in list(calls.items())[:50]:
        expression = prompt.removesuffix("=")
        result = asyncio.run(calc(expression))
        assert call == f"<calc>{expression}</calc>"
        assert answers[f"{prompt}{call}<eos>{result}"] == result.removesuffix("=")
        parts = [tokenizer(text)["input_ids"] for text in (prompt, call, result)]
        expected = [*parts[0], *parts[1], tokenizer.eos_token_id, *parts[2]]
        assert tokenizer(f"{prompt}{call}<eos>{result}")["input_ids"] == expected
        assert len(parts[1]) + 1 == calculator().rollout.max_tokens
        assert tokenizer.pad_token_id not in expected


def test_held_out_problems_are_not_in_the_training_set(tmp_path: Path) -> None:
    prepare(tmp_path, seed=5)
    train_set, held_out, demonstrations = (
        parquet.read_table(tmp_path / f"{name}.parquet")["prompt"].to_pylist()
        for name in ("train", "held_out", "demonstrations")
    )
    assert (len(train_set), len(held_out)) == (4162, 462)
    assert not {*held_out} & {*train_set}
    assert not {*held_out} & {prompt.partition("=")[0] + "=" for prompt in demonstrations}
