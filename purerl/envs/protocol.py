"""The interface of environments, and what passes between a model and an environment.

A model takes a turn: it samples tokens until a stop token. The environment answers with an `Observation`, and the model
takes the next turn, until the episode is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from attrs import field, frozen

__all__ = ["EndReason", "Environment", "Message", "Observation", "SupportsEnd", "SupportsTools", "ToolCall"]

Message = Mapping[str, Any]

EndReason = Literal["turns", "tokens", "length"]
"""Reasons for ending an episode: the limit of turns, no room for another turn, or a turn that was cut at its limit."""


@frozen
class ToolCall:
    """A call of a tool in a turn of the model.

    name, arguments  as the model has written them
    id               for the answer: a message with this ``tool_call_id``. It is the id that the model has written, if
                     its format has one and the turn has it once; otherwise it is unique in the episode. Calls that
                     differ only in it are equal
    error            why the call cannot be read, for example invalid JSON; `arguments` is empty then. An environment
                     should answer with a message, so that the model can correct itself
    """

    name: str
    arguments: Mapping[str, Any] = field(factory=dict)
    id: str = field(default="", eq=False)
    error: str | None = None


@frozen(kw_only=True)
class Observation:
    """The answer of an environment.

    messages    chat messages that follow the turn, such as ``{"role": "user", "content": ...}`` or
                ``{"role": "tool", "content": ..., "tool_call_id": ..., "name": ...}``. With plain-text prompts their
                contents are appended as text
    reward      the reward of the turn that the environment answers; None: it has none. With several players, the
                reward of each of them by its number
    done        the episode is over
    truncated   it is over because of a limit of the environment, not because of the task
    state       label of the state in which the next turn starts, for algorithms that compare turns in the same state
    score       how good the state is after the turn, for algorithms that give a turn credit for its change; of the
                first observation, before the first turn. None: there is none. It is no reward
    components  parts of the reward, for metrics only
    player      who takes the next turn, in games of several players; each has a conversation of its own, and `messages`
                are for this player
    images      the images of `messages`, in order: bytes of a file, its path, or a picture of Pillow. Where an image
                is, the content of a message is a list with the part ``{"type": "image"}``; without any such part, all
                of them come before the content of the first message. The setting `environment.images` must be true
    """

    messages: Sequence[Message] = ()
    reward: float | Mapping[int, float] | None = None
    done: bool = False
    truncated: bool = False
    state: str | int | None = None
    score: float | None = None
    components: Mapping[str, float] = field(factory=dict)
    player: int = 0
    images: Sequence[Any] = ()


@runtime_checkable
class Environment(Protocol):
    """One episode of a task. Each episode has an object of its own; it is created by calling a class or a function.

    Methods may be plain functions instead of coroutines. `purerl.testing.check_environment` tests an environment.
    """

    async def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        """Start the episode of `example`, a row of the data set. Everything random depends only on `seed`.

        The messages of the result follow those of the prompt, before the first turn.
        """
        ...

    async def step(self, text: str, calls: Sequence[ToolCall]) -> Observation:
        """Answer a turn of the model: its `text` without special tokens, and the tool calls in it."""
        ...

    async def close(self) -> None:
        """Release all resources. Called once, also after a failure. No other method is called afterwards."""
        ...


@runtime_checkable
class SupportsTools(Protocol):
    """An optional attribute of an environment: the JSON schemas of its tools, which the chat template gets."""

    tools: Sequence[Mapping[str, Any]]


@runtime_checkable
class SupportsEnd(Protocol):
    """An optional method of an environment, for rewards that are computed at the end of an episode."""

    async def end(self, reason: EndReason, text: str) -> Observation | None:
        """Called at most once, when a limit of the run ends the episode before the environment has ended it.

        `text` is the turn that was cut, which `step` has not got; otherwise it is empty. The reward and the components
        of the result count for the last turn, and everything else in it is ignored. No other method but `close` is
        called afterwards.
        """
        ...
