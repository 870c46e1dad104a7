"""Calls in purerl's own format, for models without a chat template: the name of a tool is a tag.

For example::

    <calc>12 + 30</calc>                            a tool with one parameter: its value
    <time>{"city": "Rome", "hours": 12}</time>      all other tools: a JSON object

Other tags are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from purerl.data.turn_tokens import Tools
from purerl.envs.formats.json_calls import Found, arguments_of, dumped, failed, json_at, skip
from purerl.envs.formats.text_values import read_value, schemas_of, write_value
from purerl.envs.protocol import ToolCall

__all__ = ["read", "write"]

_TAGS = ("</",)


def read(text: str, first: int, tools: Tools) -> Iterator[Found]:
    """The calls after `first`. What is in the tag of a tool is a call, also if it cannot be read."""
    schemas = schemas_of(tools)
    names = "|".join(map(re.escape, sorted(schemas, key=len, reverse=True))) or "(?!)"
    opening = re.compile(rf"<({names})>")
    while match := opening.search(text, first):
        read_body = _read_value if len(schemas[match[1]]) == 1 else _read_object
        call, first = read_body(text, match.end(), match[1], schemas[match[1]])
        if f"</{match[1]}>" in opening.split(text[first:], maxsplit=1)[0]:
            call = failed(f"the call has another </{match[1]}> after its end", match[1])
        yield Found(call, match.start(), first)


def _read_value(text: str, start: int, name: str, parameters: Mapping[str, Any]) -> tuple[ToolCall, int]:
    body, closing, _ = text[start:].partition(f"</{name}>")
    if not closing:
        return failed(f"the call is not closed by </{name}>", name), len(text)
    arguments = {key: read_value(body, schema, _TAGS) for key, schema in parameters.items()}
    return ToolCall(name, arguments), start + len(body) + len(closing)


def _read_object(text: str, start: int, name: str, parameters: Mapping[str, Any]) -> tuple[ToolCall, int]:
    closing = f"</{name}>"
    if text.startswith(closing, end := skip(text, start)):
        return ToolCall(name), end + len(closing)
    try:
        arguments, end = json_at(text, start)
    except ValueError as error:
        call = failed(f"the arguments are not valid JSON: {error}", name)
    else:
        call = arguments_of(name, arguments) if text.startswith(closing, end := skip(text, end)) else None
    if call is not None and call.error is None:
        return call, end + len(closing)
    end = text.find(closing, start)
    if end < 0:
        return failed(f"the call is not closed by {closing}", name), len(text)
    return call or failed("the call has text after its arguments", name), end + len(closing)


def write(calls: Sequence[ToolCall], tools: Tools) -> str:
    """A tag for each call."""
    schemas = schemas_of(tools)
    return "\n".join(f"<{call.name}>{_body(call, schemas.get(call.name, {}))}</{call.name}>" for call in calls)


def _body(call: ToolCall, parameters: Mapping[str, Any]) -> str:
    if len(parameters) != 1:
        return dumped(call.arguments) if call.arguments else ""
    return "".join(write_value(value, parameters.get(key), _TAGS, dumped) for key, value in call.arguments.items())
