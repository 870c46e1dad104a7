"""Calls of GLM 4.5, 4.7 and 5: the name, and tags for the names and the values of arguments.

For example::

    <tool_call>calc
    <arg_key>expression</arg_key>
    <arg_value>12 + 30</arg_value>
    </tool_call>

GLM 4.7 and 5 write no line breaks between the tags. Values that are no strings are JSON. A call that is open at the end
may have lost arguments, so it is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from purerl.data.turn_tokens import Tools
from purerl.envs.formats.json_calls import Found, dumped, failed, skip
from purerl.envs.formats.text_values import read_value, schemas_of, write_value
from purerl.envs.protocol import ToolCall

__all__ = ["read", "write"]

_TAGS = ("</arg_value>", "<arg_key>")
_OPENING, _CLOSING = "<tool_call>", "</tool_call>"

_NAME = re.compile(r"\s*([^\s<>{}\[\]\"]+)\s*(?=<arg_key>|</tool_call>)")
_PAIR = re.compile(r"\s*<arg_key>([^<]*)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)


def read(text: str, first: int, tools: Tools) -> Iterator[Found]:
    """The calls after `first`. What begins with a tag is a call, also if it cannot be read."""
    schemas = schemas_of(tools)
    while (start := text.find(_OPENING, first)) >= 0:
        if name := _NAME.match(text, start + len(_OPENING)):
            call, first = _read_arguments(text, name.end(), name[1], schemas.get(name[1], {}))
        else:
            call, first = failed("the call is not NAME<arg_key>...</arg_key><arg_value>...</arg_value>"), start + 1
        if call.error:
            end = text.find(_CLOSING, first)
            first = len(text) if end < 0 else end + len(_CLOSING)
        yield Found(call, start, first)


def _read_arguments(text: str, position: int, name: str, parameters: Mapping[str, Any]) -> tuple[ToolCall, int]:
    arguments = dict[str, Any]()
    while pair := _PAIR.match(text, position):
        key, written, position = pair[1].strip(), pair[2], pair.end()
        if key in arguments:
            return failed(f"the argument {key!r} is given twice", name), position
        if any(tag in written for tag in _TAGS):
            return failed(f"the argument {key!r} is not closed by </arg_value>", name), position
        arguments[key] = read_value(written, parameters.get(key), _TAGS)
    position = skip(text, position)
    if not text.startswith(_CLOSING, position):
        is_open = _CLOSING not in text[position:]
        problem = f"is not closed by {_CLOSING}" if is_open else "has text that is not an argument"
        return failed(f"the call {problem}", name), position
    after = text[position + len(_CLOSING) :].partition(_OPENING)[0]
    if "</arg_value>" in after or _CLOSING in after:
        return failed(f"the call has tags after {_CLOSING}", name), position
    return ToolCall(name, arguments), position + len(_CLOSING)


def write(calls: Sequence[ToolCall], tools: Tools) -> str:
    """A tag for each call, with line breaks as GLM 4.5 writes them."""
    schemas = schemas_of(tools)
    return "\n".join(f"{_OPENING}{call.name}\n{_pairs(call, schemas.get(call.name, {}))}{_CLOSING}" for call in calls)


def _pairs(call: ToolCall, parameters: Mapping[str, Any]) -> str:
    values = {key: write_value(value, parameters.get(key), _TAGS, dumped) for key, value in call.arguments.items()}
    return "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in values.items())
