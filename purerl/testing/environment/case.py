"""The argument of each check of an environment, and playing episodes."""

from __future__ import annotations

import asyncio
import copy
import inspect
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from purerl.envs.observations import Declared
from purerl.envs.protocol import Observation, ToolCall

__all__ = ["Case", "Playing", "Policy", "Turn", "call", "random_turn"]

Turn = tuple[str, Sequence[ToolCall]]
Policy = Callable[[Observation, Sequence[Mapping[str, Any]], random.Random], str | Turn]

_TEXTS = ("", "0", "1", "2", "3", "5", "yes", "no", "A", "I do not know.", "The answer is 4.")
_VALUES = {"string": "text", "integer": 1, "number": 0.5, "boolean": True, "array": [], "object": {}, "null": None}


def random_turn(observation: Observation, tools: Sequence[Mapping[str, Any]], rng: random.Random) -> Turn:
    """A short text, and a call of a random tool in two of three turns if there are tools."""
    text, calls = rng.choice(_TEXTS), []
    if tools and rng.random() < 2 / 3:
        function = rng.choice(tools)["function"]
        properties = function.get("parameters", {}).get("properties", {})
        calls = [ToolCall(function["name"], {name: _value(schema) for name, schema in properties.items()}, "call 0")]
    return text, calls


def _value(schema: Mapping[str, Any]) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type", "string")
    return _VALUES.get(kind if isinstance(kind, str) else kind[0])


async def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a method, which is a coroutine or a plain function."""
    value = function(*arguments)
    return await value if inspect.isawaitable(value) else value


class Playing:
    """An episode that is played turn by turn, with a policy whose choices depend only on the seed.

    observations  what the environment has returned
    turns         what the model has written
    """

    def __init__(self, case: Case, example: Mapping[str, Any], seed: int):
        self.example, self.seed = copy.deepcopy(dict(example)), seed
        self._case, self._rng = case, random.Random(seed)
        self.environment = case.factory()
        self.observations: list[Any] = []
        self.turns: list[Turn] = []

    @property
    def is_over(self) -> bool:
        last = self.observations[-1]
        assert isinstance(last, Observation), f"got {last!r:.200}; need a purerl.envs.protocol.Observation"
        return last.done or last.truncated or len(self.turns) >= self._case.max_turns

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        return getattr(self.environment, "tools", None) or ()

    async def reset(self) -> None:
        self.observations.append(await self._call("reset", self.example, self.seed))

    async def step(self) -> None:
        """Take a turn, unless the episode is over."""
        if self.is_over:
            return
        turn = self._case.policy(self.observations[-1], self.tools, self._rng)
        self.turns.append((turn, ()) if isinstance(turn, str) else turn)
        self.observations.append(await self._call("step", *self.turns[-1]))

    async def close(self) -> None:
        await self._call("close")

    async def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return await call(getattr(self.environment, method), *arguments)
        except Exception as error:
            shown = ", ".join(f"{argument!r:.200}" for argument in arguments)
            got = f"{type(error).__name__}: {error}"
            raise AssertionError(f"{method}({shown}): got {got}, expected no exception") from error

    async def play(self) -> None:
        try:
            await self.reset()
            while not self.is_over:
                await self.step()
        finally:
            await self.close()


@frozen
class Case:
    """A factory of environments, and the arguments of `check_environment` that the checks need."""

    factory: Callable[[], Any]
    examples: Sequence[Mapping[str, Any]]
    policy: Policy
    declared: Declared
    max_turns: int
    episodes: int

    def episodes_to_play(self) -> Iterator[tuple[Mapping[str, Any], int]]:
        """The example and the seed of each episode."""
        for index, example in enumerate(self.examples):
            for k in range(self.episodes):
                yield example, 1000 * index + k

    def playing(self, example: Mapping[str, Any], seed: int) -> Playing:
        return Playing(self, example, seed)

    def play(self, example: Mapping[str, Any], seed: int) -> Playing:
        """Play a whole episode."""
        playing = self.playing(example, seed)
        self.run(playing.play())
        return playing

    @staticmethod
    def run(coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run(coroutine)
