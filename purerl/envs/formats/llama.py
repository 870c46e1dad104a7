"""Calls of Llama 3.1 and later: JSON objects without tags, or after <|python_tag|>.

For example::

    {"name": "calc", "parameters": {"expression": "12 + 30"}}
    <|python_tag|>calc.call(expression="12 + 30")

Several calls have ``;`` between them. Text before and after them is text. An object in a text is a call if it has
nothing wrong, and a known name if there are tools. Objects may also be written as Python writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from purerl.data.turn_tokens import Tools, tool_function
from purerl.envs.formats.json_calls import Found, call_of, dumped, failed, json_at, skip
from purerl.envs.formats.python_values import MAX_REJECTED, call_of_node, closing_position, literal, parsed
from purerl.envs.protocol import ToolCall

__all__ = ["read", "write"]

_TAG = "<|python_tag|>"
_OBJECT = re.compile(r"\{\s*[\"'](?:name|type|parameters|arguments)[\"']\s*:")
_BETWEEN = re.compile(r"[\s;]*")


def read(text: str, first: int, tools: Tools) -> Iterator[Found]:
    """The calls after `first`. A turn that begins with an object has calls, also if they cannot be read."""
    begin = first
    while True:
        tag, start = text.find(_TAG, first), _find_object(text, begin, first, tools)
        if tag >= 0 and (start is None or tag < start):
            body = skip(text, tag + len(_TAG))
            is_object = text.startswith("{", body)
            found = _read_objects(text, tag, body) if is_object else [Found(_read_code(text[body:]), tag, len(text))]
        elif start is not None:
            found = _read_objects(text, start, start)
        else:
            return
        for each in found:
            first = each.end
            yield each


def _find_object(text: str, begin: int, first: int, tools: Tools) -> int | None:
    """The position of the first call without a tag after `first`, in a turn from `begin` on; None if there is none."""
    names = {tool_function(tool)["name"] for tool in tools}
    for match in islice(_OBJECT.finditer(text, first), MAX_REJECTED):
        if not text[begin : match.start()].strip():
            return match.start()
        try:
            call = _call(_object_at(text, match.start())[0])
        except ValueError:
            continue
        if call.error is None and (not names or call.name in names):
            return match.start()
    return None


def _read_objects(text: str, start: int, position: int) -> Iterator[Found]:
    """The objects from `position` on; the first of them takes the text from `start` on."""
    while position < len(text):
        try:
            value, end = _object_at(text, position)
        except ValueError as error:
            yield Found(failed(f"the call is not valid JSON: {error}"), start, len(text))
            return
        yield Found(_call(value), start, end)
        start, position = end, skip(text, end, _BETWEEN)
        is_separated = ";" in text[end:position]
        if not text.startswith("{", position) and not is_separated:
            return


def _call(value: Any) -> ToolCall:
    """The call that `value` is. It needs arguments, because other answers are JSON objects too."""
    call = call_of(value, "parameters")
    is_call = call.error or "parameters" in value or "arguments" in value
    return call if is_call else failed('"parameters" of the call is missing', call.name)


def _object_at(text: str, position: int) -> tuple[Any, int]:
    """The object that begins at `position`, and the position after it. Raises ValueError."""
    try:
        return json_at(text, position)
    except ValueError:
        end = closing_position(text, position) if text.startswith("{", position) else None
        if end is None or not isinstance(value := _literal(text[position:end]), dict):
            raise
        return value, end


def _literal(text: str) -> Any:
    try:
        return literal(text)
    except ValueError:
        return None


def _read_code(text: str) -> ToolCall:
    """The call ``NAME.call(ARGUMENT=VALUE)`` after the tag."""
    try:
        call = call_of_node(parsed(text))
    except ValueError:
        call = failed(f"the call after {_TAG} is neither a JSON object nor NAME.call(ARGUMENT=VALUE)")
    return ToolCall(call.name.removesuffix(".call"), call.arguments, error=call.error)


def write(calls: Sequence[ToolCall], tools: Tools) -> str:
    """An object for each call, with ``;`` between them."""
    bodies = (f'"name": {dumped(call.name)}, "parameters": {dumped(call.arguments)}' for call in calls)
    return "; ".join(f"{{{body}}}" for body in bodies)
