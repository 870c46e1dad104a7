"""Environments, a renderer of plain text and a recording of requests, for the tests of episodes.

A token is a letter. ``b`` ends a turn, and ``a`` is the header of the model's turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

from purerl.backends.fake.model import text_of
from purerl.data.chat import Messages, Prompt
from purerl.data.turn_tokens import Tools
from purerl.envs.protocol import Observation, ToolCall
from purerl.envs.turn import Turn
from purerl.protocols import Completion, FinishReason, Generator, Request, Sampling, generate
from purerl.rewards.adapters import RewardInput
from purerl.rewards.results import RewardResult
from purerl.rollouts.environment import EnvironmentWorkflow
from purerl.rollouts.types import Draw, Trajectory

STOP = 1
SAMPLING = Sampling(temperature=0.7, max_tokens=6, stop_tokens=(STOP,))


def tokens_of(text: str) -> list[int]:
    return [ord(letter) - ord("a") for letter in text]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


# --- rendering ---------------------------------------------------------------------------------------------------


class PlainText:
    """Appends the contents of messages. ``d`` is a tool call, ``e`` an invalid one, and ``h`` is a thought.

    A conversation that is rendered again has no thoughts.
    """

    def prompt(self, messages: Messages, tools: Tools | None = None) -> Prompt:
        text = "".join(message["content"] for message in messages) + "p" * len(tools or ()) + "a"
        return Prompt(text, tokens_of(text))

    def parse(self, tokens: Sequence[int], finish: FinishReason, *, turn: int = 0) -> Turn:
        text = text_of(tokens)
        errors = {"d": None, "e": "invalid JSON"}
        calls = [ToolCall(x, id=f"{turn}{k}", error=errors[x]) for k, x in enumerate(text) if x in errors]
        return Turn(text.rstrip("b"), calls, {"role": "assistant", "content": text})

    def following(
        self, before: Messages, turn_tokens: Sequence[int], new: Messages, tools: Tools | None = None
    ) -> list[int]:
        assert before[0]["role"] == "user"
        assert "assistant" not in [message["role"] for message in new]
        return tokens_of("".join(message["content"] for message in new) + "a")

    def rerendered(self, messages: Messages, tools: Tools | None = None) -> Prompt:
        text = "".join(map(_rendered_again, messages)) + "a"
        return Prompt(text, tokens_of(text))


def _rendered_again(message: Mapping[str, Any]) -> str:
    content = message["content"]
    return "a" + content.replace("h", "") if message["role"] == "assistant" else content


# --- environments ------------------------------------------------------------------------------------------------


@define
class Scripted:
    """An environment that returns what is in `script`, raises what is an exception, and records what it gets.

    It lets other coroutines run before each answer, as often as `delays` say.
    """

    script: Sequence[Observation | BaseException]
    delays: int = 0
    tools: Sequence[Mapping[str, Any]] = ()
    calls: list[tuple[Any, ...]] = field(factory=list)
    given: list[Observation] = field(factory=list)
    closed: int = 0

    async def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        self.calls.append((example, seed))
        return await self._answer()

    async def step(self, text: str, calls: Sequence[ToolCall]) -> Observation:
        self.calls.append((text, tuple(calls)))
        return await self._answer()

    async def close(self) -> None:
        self.closed += 1

    async def _answer(self) -> Observation:
        for _ in range(self.delays):
            await asyncio.sleep(0)
        answer = self.script[min(len(self.given), len(self.script) - 1)]
        if isinstance(answer, BaseException):
            raise answer
        self.given.append(answer)
        return answer


@define
class Ending(Scripted):
    """It is told if a limit ends the episode, and answers with `last`."""

    last: Observation | BaseException | None = None
    ends: list[tuple[str, str]] = field(factory=list)

    async def end(self, reason: str, text: str) -> Observation | None:
        self.ends.append((reason, text))
        if isinstance(self.last, BaseException):
            raise self.last
        return self.last


@define
class Opened:
    """Opens an environment for each sample, and keeps them by sample."""

    build: Callable[[int], Any]
    environments: dict[int, Any] = field(factory=dict)

    async def __call__(self, draw: Draw, sample: int) -> Any:
        self.environments[sample] = self.build(sample)
        return self.environments[sample]


# --- workflows ---------------------------------------------------------------------------------------------------


def draw(number: int = 3, prompt: str = "cc") -> Draw:
    return Draw(
        number, 5, {"prompt": prompt, "answer": "7"}, Prompt(prompt, tokens_of(prompt)), str(number), (11, number)
    )


def prompt_messages(draw: Draw) -> Messages:
    return [user(draw.example["prompt"])]


def workflow(build: Callable[[int], Any], **changes: Any) -> tuple[EnvironmentWorkflow, dict[int, Any]]:
    """A workflow with these environments, and the environments that it opens, by sample."""
    opened = Opened(build)
    settings = dict(samples_per_prompt=2, max_turns=4, sampling=SAMPLING, messages=prompt_messages)
    made = EnvironmentWorkflow(open_environment=opened, renderer=PlainText(), **{**settings, **changes})
    return made, opened.environments


@define
class Recorded:
    """Generates with `generator`, and keeps requests and completions by key. `before` is called before each request."""

    generator: Generator
    before: Callable[[], object] = lambda: None
    requests: dict[str, Request] = field(factory=dict)
    completions: dict[str, Completion] = field(factory=dict)
    batches: list[int] = field(factory=list)

    async def __call__(self, requests: Sequence[Request]) -> list[Completion]:
        self.before()
        self.batches.append(len(requests))
        completions = generate(self.generator, requests)
        self.requests |= {request.key: request for request in requests}
        self.completions |= {completion.key: completion for completion in completions}
        return completions


@frozen
class Says:
    """Generates given texts, by the key of the request; the text of a key that is missing is ``cb``."""

    texts: Mapping[str, str]

    async def __call__(self, requests: Sequence[Request]) -> list[Completion]:
        return [self._completion(request) for request in requests]

    def _completion(self, request: Request) -> Completion:
        tokens = tokens_of(self.texts.get(request.key, "cb"))[: request.sampling.max_tokens]
        finish = "stop" if tokens[-1] == STOP else "length"
        logp = [-0.5 - k for k in range(len(tokens))]
        return Completion(request.key, tokens, logp, [7] * len(tokens), finish)


def scores(*results: RewardResult) -> tuple[Callable[[Sequence[RewardInput]], Any], list[RewardInput]]:
    """Reward functions that return `results`, one after the other, and what they were called with."""
    remaining, inputs = list(results), list[RewardInput]()

    async def score(batch: Sequence[RewardInput]) -> list[RewardResult]:
        inputs.extend(batch)
        return [remaining.pop(0) for _ in batch]

    return score, inputs


def result(**components: float) -> RewardResult:
    return RewardResult(components, components, by_function={"f": components})


def spans(fields: Mapping[str, Any]) -> dict[int, slice]:
    """The positions of the sampled tokens of each turn of a row."""
    positions: dict[int, list[int]] = {}
    for k, (turn, action) in enumerate(zip(fields["turn"], fields["action"], strict=True)):
        if action:
            positions.setdefault(turn, []).append(k)
    for turn, indices in positions.items():
        assert indices == [*range(indices[0], indices[-1] + 1)], f"turn {turn} is not in one piece"
    return {turn: slice(indices[0], indices[-1] + 1) for turn, indices in positions.items()}


def texts_of(fields: Mapping[str, Any]) -> str:
    """The text of a row, with the sampled tokens in capital letters."""
    pairs: Iterable[tuple[str, bool]] = zip(text_of(fields["tokens"]), fields["action"], strict=True)
    return "".join(letter.upper() if is_action else letter for letter, is_action in pairs)


class Broken(Scripted):
    """An environment that raises an exception in `reset`."""

    async def reset(self, example: Any, seed: int) -> Observation:
        raise ValueError("no such level")


TWO_TURNS = (
    Observation(messages=[user("f")]),
    Observation(messages=[user("gg")], reward=0.5),
    Observation(reward=2.0, done=True, messages=[user("iii")]),
)


def run(made: Any, generate: Any, number: int = 3) -> list[Trajectory]:
    return asyncio.run(made(draw(number), generate))
