"""Calls of DeepSeek V3 and R1: the name after a separator, and the arguments as a block of JSON.

For example::

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>calc
    ```json
    {"expression": "12 + 30"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

The tags around all calls may be missing, and a call may be open at the end, because its JSON is complete.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from purerl.data.turn_tokens import Tools
from purerl.envs.formats.json_calls import Found, dumped, failed, headed_calls
from purerl.envs.protocol import ToolCall

__all__ = ["read", "write"]

_ALL, _END_ALL = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_ONE, _END_ONE, _SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"

_HEAD = re.compile(rf"(?:{_ALL}\s*)?{_ONE}(?:\s*+(?:\w++\s*+)?{_SEPARATOR}([^\n<`]*+)\s*+```(?:json)?)?")
_TAIL = re.compile(rf"\s*+(?:```)?\s*+(?:{_END_ONE}\s*+(?:{_END_ALL})?|{_END_ALL}|\Z|(?={_ONE}))")


def read(text: str, first: int, tools: Tools) -> Iterator[Found]:
    """The calls after `first`. What begins as a call is one, also if it cannot be read."""
    return headed_calls(text, first, _HEAD, _TAIL, _read_head, _END_ONE)


def _read_head(match: re.Match[str]) -> ToolCall:
    name = (match[1] or "").strip()
    return ToolCall(name) if name else failed(f"the call does not begin with function{_SEPARATOR}NAME and ```json")


def write(calls: Sequence[ToolCall], tools: Tools) -> str:
    """All calls between the tags around them, each in a new line."""
    bodies = (f"function{_SEPARATOR}{call.name}\n```json\n{dumped(call.arguments)}\n```" for call in calls)
    return _ALL + "\n".join(f"{_ONE}{body}{_END_ONE}" for body in bodies) + _END_ALL
