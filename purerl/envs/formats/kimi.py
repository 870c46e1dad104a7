"""Calls of Kimi K2 and K2.5: the name is a part of the call's id, with the number of the call in the conversation.

For example::

    <|tool_calls_section_begin|><|tool_call_begin|>functions.calc:0<|tool_call_argument_begin|>{"expression": "12 + 30"}
    <|tool_call_end|><|tool_calls_section_end|>

The tags around all calls may be missing, and a call may be open at the end, because its JSON is complete. An id without
a name is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from purerl.data.turn_tokens import Tools
from purerl.envs.formats.json_calls import Found, dumped, failed, headed_calls
from purerl.envs.protocol import ToolCall

__all__ = ["read", "write"]

_ALL, _END_ALL = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_ONE, _ARGUMENTS, _END_ONE = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_all, _end_all, _one, _arguments, _end_one = map(re.escape, (_ALL, _END_ALL, _ONE, _ARGUMENTS, _END_ONE))

_HEAD = re.compile(rf"(?:{_all}\s*)?{_one}(?:([^<|]*){_arguments})?")
_TAIL = re.compile(rf"\s*+(?:{_end_one}\s*+(?:{_end_all})?|{_end_all}|\Z|(?={_one}))")
_ID = re.compile(r"(?:functions\.)?(?!\d+\Z)([^\s:]+)(?::\d+)?")


def read(text: str, first: int, tools: Tools) -> Iterator[Found]:
    """The calls after `first`. What begins as a call is one, also if it cannot be read."""
    return headed_calls(text, first, _HEAD, _TAIL, _read_head, _END_ONE)


def _read_head(match: re.Match[str]) -> ToolCall:
    given = (match[1] or "").strip()
    name = _ID.fullmatch(given)
    return ToolCall(name[1], id=given) if name else failed(f"the call has no id functions.NAME:NUMBER, but {given!r}")


def write(calls: Sequence[ToolCall], tools: Tools) -> str:
    """All calls between the tags around them. Without an id of this form, a call has its number in the turn."""
    heads = (_written_id(call, number) + _ARGUMENTS for number, call in enumerate(calls))
    bodies = (head + dumped(call.arguments) for head, call in zip(heads, calls, strict=True))
    return _ALL + "".join(f"{_ONE}{body}{_END_ONE}" for body in bodies) + _END_ALL


def _written_id(call: ToolCall, number: int) -> str:
    given = _ID.fullmatch(call.id)
    return call.id if given and given[1] == call.name else f"functions.{call.name}:{number}"
