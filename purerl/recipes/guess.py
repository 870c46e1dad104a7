"""A game of several turns on the CPU of a laptop: find a number from 1 to 7 with three guesses.

    guess:2<eos>higher:6<eos>lower:4<eos>

A turn of the model is a number and the end token. The environment answers ``higher:`` or ``lower:``, or ``invalid:`` if
the turn is not a number from 1 to 7. The episode has the reward 1 if one of the guesses is right, and 0 if not.

A small Qwen3 model with random weights is first trained by SFT on games of a player who knows the rules and has no
strategy: each guess is drawn from the numbers that are still possible (`initial_run`). This player finds the number in
68 % of the games (166/245). The RL phase then uses only the rewards. Bisection is the one strategy that always finds
the number: 4 first, then 2 or 6, then the number that is left. So the optimal accuracy is 1.

Each turn has a state, the range of the numbers that are still possible, so that ``algorithm.kind=gigpo`` can compare
turns that started in the same state.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from purerl.algos import dapo, sft
from purerl.backends.hf import generator, trainer
from purerl.backends.hf.tiny_models import word_tokenizer, write_small_model
from purerl.config.schema import RunConfig
from purerl.envs.protocol import Observation, ToolCall
from purerl.envs.settings import EnvironmentSettings
from purerl.evaluation.settings import Evaluate
from purerl.recipes.tiny_task import BETAS, COSINE, tiny_task, write_parquet
from purerl.rollouts.settings import Rollout
from purerl.store.settings import Checkpoint

__all__ = ["GuessTheNumber", "guess", "prepare"]

_NUMBERS = range(1, 8)
_MAX_GUESSES = 3
_TURN_TOKENS = 2  # a number and the end
_PROMPT = "guess:"
_NUM_GAMES = 8000  # of the player without a strategy


class GuessTheNumber:
    """A game for the number of the example. The state of a turn is the range of the numbers that are possible."""

    async def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        self._number, self._remaining = example["number"], _MAX_GUESSES
        self._low, self._high = _NUMBERS[0], _NUMBERS[-1]
        return Observation(state=self._state())

    async def step(self, text: str, calls: Sequence[ToolCall]) -> Observation:
        is_right = text == str(self._number)
        self._remaining = 0 if is_right else self._remaining - 1
        if self._remaining <= 0:
            return Observation(reward=float(is_right), done=True)
        return Observation(messages=[{"role": "user", "content": self._answer(text)}], state=self._state())

    async def close(self) -> None:
        pass

    def _answer(self, text: str) -> str:
        if text not in map(str, _NUMBERS):
            return "invalid:"
        if int(text) < self._number:
            self._low = max(self._low, int(text) + 1)
            return "higher:"
        self._high = min(self._high, int(text) - 1)
        return "lower:"

    def _state(self) -> str:
        return f"{self._low} to {self._high}"


def guess(max_steps: int | None = None, num_epochs: float | None = None) -> RunConfig:
    """DAPO on games of up to three turns, after a short SFT phase; 60 steps by default."""
    return tiny_task(
        name="guess",
        prepare_data="purerl.recipes.guess:prepare",
        initial_run=dict(
            name="guess, initial run",
            data="{run}/prepared/turns.parquet",
            algorithm=sft.Config(),
            max_steps=500,
            batch_size=256,
            trainer=trainer.Config(lr=2e-3, betas=BETAS, lr_scheduler="cosine", max_tokens_per_microbatch=4096),
            checkpoint=Checkpoint(every=250, keep=1),
        ),
        data="{run}/prepared/games.parquet",
        environment=EnvironmentSettings(
            factory="purerl.recipes.guess:GuessTheNumber", has_states=True, max_turns=_MAX_GUESSES, run_in="event_loop"
        ),
        algorithm=dapo.Config(),
        steps=60,
        max_steps=max_steps,
        num_epochs=num_epochs,
        batch_size=14,
        num_minibatches=2,
        rollout=Rollout(samples_per_prompt=32, max_tokens=_TURN_TOKENS),
        generator=generator.Config(max_num_seqs=448),
        trainer=trainer.Config(lr=1e-3, max_grad_norm=1.0, max_tokens_per_microbatch=4096, **COSINE),
        evaluate=Evaluate(
            data="{run}/prepared/games.parquet",
            every=10,
            max_tokens=_TURN_TOKENS,
            samples_per_prompt=64,
            temperature=1.0,
            pass_at_k=[],
        ),
    )


def prepare(folder: Path, seed: int) -> None:
    """Write a game for each number, the turns of a player, and a model with random weights, into `folder`."""
    rng = random.Random(seed)
    turns = [turn for _ in range(_NUM_GAMES) for turn in _turns(rng)]
    rng.shuffle(turns)
    write_parquet(folder / "games.parquet", [{"prompt": _PROMPT, "number": number} for number in _NUMBERS])
    write_parquet(folder / "turns.parquet", turns)
    words = [*map(str, _NUMBERS), _PROMPT, "higher:", "lower:", "invalid:"]
    write_small_model(folder / "model", word_tokenizer(words, pattern=r"\d|\w+:"), seed=seed, max_length=32)


def _turns(rng: random.Random) -> list[dict[str, str]]:
    """The turns of a game of the player, each with the conversation before it."""
    number, text, turns = rng.choice(_NUMBERS), _PROMPT, []
    low, high = _NUMBERS[0], _NUMBERS[-1]
    for _ in range(_MAX_GUESSES):
        guessed = rng.randint(low, high)
        turns.append({"prompt": text, "completion": str(guessed)})
        if guessed == number:
            break
        text += f"{guessed}<eos>{'higher:' if guessed < number else 'lower:'}"
        low, high = (guessed + 1, high) if guessed < number else (low, guessed - 1)
    return turns
