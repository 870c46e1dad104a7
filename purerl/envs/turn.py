"""A turn of a model: its text, its message, and the tool calls in it."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, frozen

from purerl.data.chat import Chat
from purerl.data.encoding import decode
from purerl.data.turn_tokens import without_stop_tokens
from purerl.envs.protocol import Message, ToolCall
from purerl.protocols import FinishReason

__all__ = ["Turn", "text_of", "turn_of"]


@frozen
class Turn:
    """The model's turn, as text and tool calls.

    text     without special tokens
    calls    of tools, in their order
    message  of the role "assistant". Its content has no tool calls if all of them could be read; they are in
             "tool_calls" then, each with "name", "arguments" and "id"
    """

    text: str
    calls: tuple[ToolCall, ...]
    message: Message


def text_of(chat: Chat, tokens: Sequence[int]) -> str:
    """The text of a turn, with special tokens, but without the stop tokens at its end."""
    return decode(chat, without_stop_tokens(chat, tokens), skip_special_tokens=False)


def turn_of(
    chat: Chat, tokens: Sequence[int], finish: FinishReason, turn: int, contents: Message, calls: Sequence[ToolCall]
) -> Turn:
    """The turn `tokens` with these `calls`; its message has the items of `contents`.

    The calls get ids, unless the model has written a different one for each of them.
    """
    if len({call.id for call in calls if call.id}) < len(calls):
        calls = [evolve(call, id=f"call{turn:03d}{index:02d}") for index, call in enumerate(calls)]
    calls = list(calls)
    if finish == "length" and calls and calls[-1].error:
        calls[-1] = evolve(calls[-1], error=f"{calls[-1].error} (the turn reached the maximum number of tokens)")
    message = {"role": "assistant", **contents}
    if calls and not any(call.error for call in calls):
        message["tool_calls"] = [{"name": call.name, "arguments": call.arguments, "id": call.id} for call in calls]
    return Turn(decode(chat, tokens, skip_special_tokens=True), tuple(calls), message)
