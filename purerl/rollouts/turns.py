"""What the workflow of an environment needs in order to render conversations, and to read the turns of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from attrs import frozen

from purerl.data.chat import Messages, Prompt
from purerl.envs.protocol import Message, ToolCall
from purerl.protocols import FinishReason

__all__ = ["Tools", "Turn", "TurnRenderer"]

Tools = Sequence[Mapping[str, Any]]
"""JSON schemas of the tools of an environment."""


@frozen
class Turn:
    """A turn of the model, as it is read from its tokens.

    text     without special tokens
    calls    the tool calls in it
    message  the turn as a chat message
    """

    text: str
    calls: Sequence[ToolCall]
    message: Message


class TurnRenderer(Protocol):
    """Renders conversations. Sampled tokens are kept as they are: they are never rendered or tokenized again."""

    def prompt(self, messages: Messages, tools: Tools | None = None) -> Prompt:
        """The conversation `messages`, and the header of the assistant's turn."""
        ...

    def parse(self, tokens: Sequence[int], finish: FinishReason, *, turn: int = 0) -> Turn:
        """Read the sampled `tokens` of a turn, which has the number `turn` in its episode."""
        ...

    def following(
        self, before: Messages, turn_tokens: Sequence[int], new: Messages, tools: Tools | None = None
    ) -> list[int]:
        """The tokens between a turn and the next one.

        `before` are the messages before the turn that consists of `turn_tokens`; `new` are the messages after it.
        """
        ...

    def rerendered(self, messages: Messages, tools: Tools | None = None) -> Prompt:
        """The whole conversation `messages`, and the header of the assistant's turn. Earlier turns may have changed."""
        ...
