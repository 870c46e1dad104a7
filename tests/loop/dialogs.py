"""An environment for small runs, and a chat template that changes earlier turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve

from purerl.config.schema import RunConfig
from purerl.envs.protocol import Observation, ToolCall
from purerl.envs.settings import EnvironmentSettings
from purerl.recipes import addition
from purerl.rollouts.settings import Rollout
from tests.data.made import write

from . import prepared
from .small import small_real

TURNS = 3
TWO_PLAYERS = {"players": 2, "kwargs": {"players": 2}}

# All characters are in the vocabulary of the addition task. An earlier turn loses all digits but 1 and 5.
TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role == 'assistant' and not loop.last -%}
{%- set ns = namespace(content=message.content) -%}
{%- for letter in '0234678' -%}{%- set ns.content = ns.content | replace(letter, '') -%}{%- endfor -%}
{{ ns.content + '<eos>' }}
{%- elif message.role == 'assistant' -%}
{{ message.content + '<eos>' }}
{%- else -%}
{{ message.content + '=' }}
{%- endif -%}
{%- endfor -%}"""


class Digits:
    """A game of three turns. A turn that starts with an even digit has the reward 1; with two players, the other -1.

    The score of the state is the number of these turns. After the second turn it is not known.
    """

    def __init__(self, players: int = 1) -> None:
        self.players, self.turns, self.score = players, 0, 0.0

    async def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        self.turns, self.score = 0, 0.0
        return Observation(messages=[{"role": "user", "content": "0"}], state="start")

    async def step(self, text: str, calls: Sequence[ToolCall]) -> Observation:
        mover, self.turns = self.turns % self.players, self.turns + 1
        points = float(text[:1] in {*"02468"})
        self.score += points
        return Observation(
            messages=[{"role": "user", "content": str(self.turns)}],
            reward=points if self.players == 1 else {mover: points, 1 - mover: -points},
            components={"length": len(text)},
            done=self.turns == TURNS,
            state=text[:1] in {*"02468"},
            score=None if self.turns == 2 else self.score,
            player=self.turns % self.players,
        )

    async def close(self) -> None:
        pass


def game(**changes: Any) -> EnvironmentSettings:
    """The section `environment` of runs with this game."""
    settings = {"factory": "tests.loop.dialogs:Digits", "max_turns": TURNS, "run_in": "event_loop"}
    return EnvironmentSettings(**settings | changes)


def prepare(folder: Path, seed: int) -> None:
    """Write a model with the chat template, and prompts with messages, into `folder`."""
    prepared.prepare(folder, seed)
    tokenizer = addition.character_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder / "model")
    for name in ("train", "held_out"):
        rows = [{"prompt": [{"role": "user", "content": str(k)}], "answer": str(k)} for k in range(10)]
        write(folder / f"{name}.parquet", rows)


def rerendered(max_steps: int = 2, **changes: Any) -> RunConfig:
    """A small run with a real model in an environment whose earlier turns are rendered again, and change."""
    rollout = Rollout(samples_per_prompt=4, max_tokens=8, stop_strings=("1", "3", "5", "7", "9"))
    settings = {"prepare_data": "tests.loop.dialogs:prepare", "rewards": (), "evaluate": None, "rollout": rollout}
    config = small_real(max_steps, environment=game(history="rerender"), **settings)
    return evolve(config, **changes)
