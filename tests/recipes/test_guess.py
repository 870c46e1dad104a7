"""The recipe `guess` learns to bisect, and only from its rewards."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from attrs import evolve
from transformers import AutoTokenizer

from purerl.algos import gigpo
from purerl.config.schema import RunConfig
from purerl.loop.train import Summary, train
from purerl.recipes.guess import GuessTheNumber, guess, prepare
from purerl.runs.play import play_row
from purerl.store.rollouts import read_rollouts
from purerl.testing import check_environment

from .controls import train_with_shuffled_rewards
from .made import one_step, records

_GAMES = [{"number": number} for number in range(1, 8)]
_WITHOUT_STRATEGY = 166 / 245


@cache
def _expected(numbers: int, guesses: int, best: bool) -> Fraction:
    """Number of `numbers` possible numbers that a player finds: the best one, or one who draws each guess from them."""
    if numbers == 0 or guesses == 0:
        return Fraction(0)
    found = [
        1 + _expected(guess - 1, guesses - 1, best) + _expected(numbers - guess, guesses - 1, best)
        for guess in range(1, numbers + 1)
    ]
    return max(found) if best else Fraction(sum(found), numbers)


def test_the_accuracies_of_the_recipe_are_exact() -> None:
    assert _expected(7, 3, best=True) / 7 == 1
    assert _expected(7, 3, best=False) / 7 == Fraction(166, 245)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return train(guess(), directory=tmp_path_factory.mktemp("guess") / "run")


@pytest.mark.slow
@pytest.mark.training
def test_rl_teaches_the_model_to_bisect(run: Summary) -> None:
    assert abs(run.before["eval/accuracy"] - _WITHOUT_STRATEGY) < 0.08
    assert run.after["eval/accuracy"] > 0.97


@pytest.mark.slow
@pytest.mark.training
def test_shuffled_rewards_do_not(run: Summary, tmp_path: Path) -> None:
    control = train_with_shuffled_rewards(guess(max_steps=30), run, tmp_path / "run")
    assert control.before == run.before
    assert control.after["eval/accuracy"] < control.before["eval/accuracy"] + 0.08
    assert records(run.directory)[30]["eval/accuracy"] > control.before["eval/accuracy"] + 0.15


def _bisect(low: int, high: int, number: int) -> list[str]:
    middle = (low + high) // 2
    if middle == number:
        return [str(middle)]
    rest = _bisect(middle + 1, high, number) if middle < number else _bisect(low, middle - 1, number)
    return [str(middle), *rest]


def test_bisection_finds_each_number(tmp_path: Path) -> None:
    (tmp_path / "prepared").mkdir()
    prepare(tmp_path / "prepared", seed=1)
    config = evolve(_one_step(), prepare_data=None)
    for row, game in enumerate(_GAMES):
        turns = _bisect(1, 7, game["number"])
        [trajectory] = play_row(config, row, turns=turns, directory=tmp_path)
        assert trajectory.result.reward == 1
        assert trajectory.metrics["environment/turns"] == len(turns)


def test_the_environment_conforms() -> None:
    def play(observation: object, tools: object, rng: random.Random) -> str:
        return rng.choice(["1", "2", "3", "4", "5", "6", "7", "8", "", "01", "1 2"])

    check_environment(GuessTheNumber, _GAMES, policy=play, has_states=True)


@pytest.mark.parametrize(
    ("number", "turn", "answer", "state"),
    [
        (4, "5", "lower:", "1 to 4"),
        (4, "2", "higher:", "3 to 7"),
        (4, "8", "invalid:", "1 to 7"),
        (4, "", "invalid:", "1 to 7"),
        (4, "04", "invalid:", "1 to 7"),
    ],
)
def test_answers(number: int, turn: str, answer: str, state: str) -> None:
    async def step(example: Mapping[str, Any]) -> Any:
        game = GuessTheNumber()
        await game.reset(example, seed=0)
        return await game.step(turn, ())

    observation = asyncio.run(step({"number": number}))
    assert [message["content"] for message in observation.messages] == [answer]
    assert (observation.state, observation.done) == (state, False)


def _one_step() -> RunConfig:
    return one_step(guess(max_steps=1), algorithm=gigpo.Config(), batch_size=2, samples_per_prompt=1)


def test_a_step_of_games_with_gigpo(tmp_path: Path) -> None:
    summary = train(_one_step(), directory=tmp_path / "run")
    rows = read_rollouts(summary.directory / "rollouts", 1)
    assert len(rows) == 8
    assert all(json.loads(row["messages"])[0]["content"] == "guess:" for row in rows)
    assert records(summary.directory)[-1]["reward/valid_fraction"] == 1


def test_demonstrations_are_the_turns_of_an_episode(tmp_path: Path) -> None:
    """The text that the model is trained on has the tokens of an episode: those of the turns end with <eos>."""
    prepare(tmp_path, seed=1)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    rows = parquet.read_table(tmp_path / "turns.parquet").to_pylist()
    assert {row["completion"] for row in rows} == {*"1234567"}
    for row in rows[:100]:
        parts = row["prompt"].replace("<eos>", " <eos> ").replace(":", ": ").split()
        expected = [token for part in parts for token in _tokens(tokenizer, part)]
        assert tokenizer(row["prompt"])["input_ids"] == expected
        assert tokenizer.pad_token_id not in expected
        assert len(tokenizer(row["completion"])["input_ids"]) + 1 == guess().rollout.max_tokens


def _tokens(tokenizer: Any, part: str) -> list[int]:
    """The tokens of a prompt, of an answer, of a turn, which may follow an answer, or of the end of a turn."""
    if part == "<eos>":
        return [tokenizer.eos_token_id]
    return tokenizer(part)["input_ids"]
