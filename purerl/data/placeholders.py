"""Conversations with placeholders in place of their texts, thoughts and calls: what does a chat template show of them?

A placeholder is unique and long, so that it is not found by accident, and a template that cuts texts is found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from purerl.data.chat import Chat, Messages
from purerl.data.messages import with_functions
from purerl.data.row_images import text_of
from purerl.data.turn_tokens import tool_function

__all__ = ["THOUGHTS", "Piece", "has_inline_thoughts", "has_thoughts", "tool_names", "with_placeholders", "with_tools"]

THOUGHTS = ("reasoning_content", "thinking", "reasoning")
"""Keys of the thoughts of a message. transformers copies one to the others."""

_END_OF_THOUGHTS = "</think>"
_FILL = "some words of a text that is as long as those of users are " * 40
# Tags and space at both ends stay: templates look at them.
_TEXT = re.compile(r"(\s*(?:<[\w-]+>\s*)?)(.*?)(\s*(?:</[\w-]+>\s*)?)", re.DOTALL)

Part = Literal["text", "thoughts", "call"]


class Piece(NamedTuple):
    """A placeholder: the index of its message, the part of the message that it stands for, and itself."""

    message: int
    part: Part
    text: str


def has_inline_thoughts(message: Mapping[str, Any]) -> bool:
    """Whether the content of `message` is an answer after thoughts."""
    return message["role"] == "assistant" and _END_OF_THOUGHTS in text_of(message.get("content"))


def has_thoughts(message: Mapping[str, Any]) -> bool:
    """Whether `message` has thoughts, in its content or beside it."""
    return has_inline_thoughts(message) or any(message.get(name) for name in THOUGHTS)


def with_placeholders(chat: Chat, messages: Messages) -> tuple[list[Mapping[str, Any]], list[Piece]]:
    """`messages` with placeholders, and these in the order of the messages."""
    made = [_Replaced(chat, k).message(message) for k, message in enumerate(messages)]
    return [message for message, _ in made], [piece for _, pieces in made for piece in pieces]


class _Replaced:
    def __init__(self, chat: Chat, k: int):
        self.ends = {*chat.stop_strings, chat.tokenizer.bos_token, chat.tokenizer.eos_token}
        self.k, self.pieces = k, list[Piece]()

    def message(self, message: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[Piece]]:
        changed = {**with_functions(message), "content": self._content(message)}
        thoughts = [name for name in THOUGHTS if isinstance(message.get(name), str)]
        changed |= dict.fromkeys(thoughts, self._text("thoughts", message[thoughts[0]]) if thoughts else "")
        if calls := changed.get("tool_calls"):
            changed["tool_calls"] = [self._call(call) for call in calls]
        return changed, self.pieces

    def _content(self, message: Mapping[str, Any]) -> Any:
        content = message.get("content")
        if isinstance(content, list | tuple):
            return [
                {**part, "text": self._text("text", part["text"])} if part.get("text") else part for part in content
            ]
        if content is None or not has_inline_thoughts(message):
            return content and self._text("text", content)
        thoughts, end, answer = content.rpartition(_END_OF_THOUGHTS)
        return self._text("thoughts", thoughts) + end + self._text("text", answer)

    def _text(self, part: Part, text: str) -> str:
        match = _TEXT.fullmatch(text)
        if match is None or not match[2]:
            return text
        before, after = ("" if edge.strip() in self.ends else edge for edge in match.group(1, 3))
        return before + "\n".join(self._new(part, fill) for fill in ("the first line", _FILL.strip())) + after

    def _call(self, call: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**call, "function": {**call["function"], "name": self._new("call", "").replace(" ", "_")}}

    def _new(self, part: Part, fill: str) -> str:
        text = f"placeholder {self.k} {len(self.pieces)} {fill}"
        self.pieces.append(Piece(self.k, part, text if fill else text.replace(" ", "_")))
        return text


def with_tools(tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The schemas `tools` with other names: those of `tool_names`."""
    return [
        {**tool, "function": {**function, "name": name}} if "function" in tool else {**tool, "name": name}
        for tool, function, name in zip(tools, map(tool_function, tools), tool_names(tools), strict=True)
    ]


def tool_names(tools: Sequence[Any]) -> Iterator[str]:
    """A placeholder for the name of each of `tools`."""
    return (f"placeholder_tool_{k}_" for k in range(len(tools)))
