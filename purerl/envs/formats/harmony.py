"""Calls of gpt-oss in the format harmony: messages to a recipient, with JSON as their text.

For example::

    <|channel|>commentary to=functions.calc <|constrain|>json<|message|>{"expression": "12 + 30"}<|call|>

The recipient may be before the channel. Messages in other channels, such as the thinking in `analysis`, are no calls.
A call may be open at the end, because its JSON is complete, and <|call|> is the token that the model stops with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from purerl.data.turn_tokens import Tools
from purerl.envs.formats.json_calls import Found, dumped, headed_calls
from purerl.envs.protocol import ToolCall

__all__ = ["read", "write"]

_CHANNEL = r"<\|channel\|>\s*+(?:commentary|analysis)"
_TO = r"to=functions\.([^\s<]+)"
_TYPE = r"\s*+(?:<\|constrain\|>)?\s*+(?:json|code)?\s*+"
_HEAD = re.compile(rf"(?:<\|start\|>assistant)?(?:{_CHANNEL}\s*+{_TO}| ?{_TO}\s*+{_CHANNEL}){_TYPE}<\|message\|>")
_TAIL = re.compile(r"\s*+(?:<\|call\|>|<\|end\|>|<\|return\|>|\Z|(?=<\|start\|>))")


def read(text: str, first: int, tools: Tools) -> Iterator[Found]:
    """The messages to functions after `first`."""
    return headed_calls(text, first, _HEAD, _TAIL, lambda match: ToolCall(match[1] or match[2]), "<|call|>")


def write(calls: Sequence[ToolCall], tools: Tools) -> str:
    """A message for each call. The first one has no role, because the prompt ends with it."""
    heads = (f"<|channel|>commentary to=functions.{call.name} <|constrain|>json<|message|>" for call in calls)
    messages = (f"{head}{dumped(call.arguments)}<|call|>" for head, call in zip(heads, calls, strict=True))
    return "<|start|>assistant".join(messages)
