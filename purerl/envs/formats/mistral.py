"""Calls of Mistral: a list of JSON objects, or since the tokenizers of version 11 the name and its arguments.

For example::

    [TOOL_CALLS][{"name": "calc", "arguments": {"expression": "12 + 30"}, "id": "call00000"}]
    [TOOL_CALLS]calc[CALL_ID]call00000[ARGS]{"expression": "12 + 30"}

The id may be missing in both, and [ARGS] too. In the second form, [TOOL_CALLS] stands before each call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from purerl.data.turn_tokens import Tools
from purerl.envs.formats.json_calls import Found, arguments_of, call_of, dumped, failed, json_at, skip
from purerl.envs.protocol import ToolCall

__all__ = ["read", "write"]

_OPENING = "[TOOL_CALLS]"
_NAME = re.compile(r"\s*+([^\s\[\]{}\"]+)\s*+(?:\[CALL_ID\]\s*+(\w+)\s*+)?(?:\[ARGS\])?\s*+(?=\{)")
_END = re.compile(r"\s*(?:\Z|(?=\[TOOL_CALLS\]))")


def read(text: str, first: int, tools: Tools) -> Iterator[Found]:
    """The calls after `first`. What follows [TOOL_CALLS] is a call, also if it cannot be read."""
    while (start := text.find(_OPENING, first)) >= 0:
        body = skip(text, start + len(_OPENING))
        try:
            calls, first = _read_list(text, body) if text.startswith(("[", "{"), body) else _read_call(text, body)
        except ValueError as error:
            calls, first = [failed(f"the call is not valid JSON: {error}")], body
        yield from (Found(call, first if index else start, first) for index, call in enumerate(calls))


def _read_list(text: str, position: int) -> tuple[list[ToolCall], int]:
    value, end = json_at(text, position)
    return [call_of(each) for each in (value if isinstance(value, list) and value else [value])], end


def _read_call(text: str, position: int) -> tuple[list[ToolCall], int]:
    if not (head := _NAME.match(text, position)):
        return [failed("the call is neither a list of JSON objects nor NAME[ARGS]{...}")], position
    arguments, end = json_at(text, head.end())
    tail = _END.match(text, end)
    if not tail:
        return [failed("the call has text after its arguments", head[1])], end
    return [arguments_of(head[1], arguments, head[2] or "")], tail.end()


def write(calls: Sequence[ToolCall], tools: Tools) -> str:
    """The first form, which all tokenizers know, with the ids that the calls have."""
    return f"{_OPENING}[{', '.join(map(_written, calls))}]"


def _written(call: ToolCall) -> str:
    given = f', "id": {dumped(call.id)}' if call.id else ""
    return f'{{"name": {dumped(call.name)}, "arguments": {dumped(call.arguments)}{given}}}'
