"""Calls of Qwen 2.5, Qwen 3 and Hermes: JSON in tags.

For example::

    <tool_call>
    {"name": "calc", "arguments": {"expression": "12 + 30"}}
    </tool_call>

A tag may have several calls, or a list of them. The last tag may be open at the end, because its JSON is complete.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from purerl.data.turn_tokens import Tools
from purerl.envs.formats.json_calls import Found, call_of, dumped, failed, json_at, skip
from purerl.envs.protocol import ToolCall

__all__ = ["read", "write"]

_OPENING, _CLOSING = "<tool_call>", "</tool_call>"
_BETWEEN = re.compile(r"[\s,;]*")


def read(text: str, first: int, tools: Tools) -> Iterator[Found]:
    """The calls after `first`. What is in a tag is a call, also if it cannot be read."""
    while (start := text.find(_OPENING, first)) >= 0:
        calls, first = _read_tag(text, start + len(_OPENING))
        yield from (Found(call, first if index else start, first) for index, call in enumerate(calls))


def _read_tag(text: str, position: int) -> tuple[list[ToolCall], int]:
    calls = list[ToolCall]()
    while not calls or not _is_end(text, position):
        try:
            value, position = json_at(text, position)
        except ValueError as error:
            end = text.find(_CLOSING, position)
            problem = f"the call is not valid JSON: {error}" if end >= 0 else f"the call is not closed by {_CLOSING}"
            return [failed(problem)], end + len(_CLOSING) if end >= 0 else len(text)
        calls += map(call_of, value if isinstance(value, list) and value else [value])
        position = skip(text, position, _BETWEEN)
    return calls, position + len(_CLOSING) * text.startswith(_CLOSING, position)


def _is_end(text: str, position: int) -> bool:
    return position == len(text) or text.startswith((_OPENING, _CLOSING), position)


def write(calls: Sequence[ToolCall], tools: Tools) -> str:
    """A tag for each call."""
    bodies = (f'{{"name": {dumped(call.name)}, "arguments": {dumped(call.arguments)}}}' for call in calls)
    return "\n".join(f"{_OPENING}\n{body}\n{_CLOSING}" for body in bodies)
