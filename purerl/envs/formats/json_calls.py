"""Calls whose arguments are a JSON object: what the formats with JSON have in common."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from purerl.envs.protocol import ToolCall

__all__ = ["Found", "arguments_of", "call_of", "dumped", "failed", "headed_calls", "json_at", "loaded", "skip"]

_OPTIONAL = ("id", "type", "index")
_SPACE = re.compile(r"\s*")


class Found(NamedTuple):
    """A call, and its place in the text: from `start` up to `end`."""

    call: ToolCall
    start: int
    end: int


def failed(error: str, name: str = "") -> ToolCall:
    """A call that cannot be read."""
    return ToolCall(name, error=error)


def dumped(value: Any) -> str:
    """`value` as JSON. Raises ValueError or TypeError if JSON has no such value."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def loaded(text: str) -> Any:
    """The value that `text` is in JSON. Raises ValueError, also for values that cannot be written to a file."""
    try:
        return _checked(json.loads(text))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def json_at(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that begins at `start`, after white space, and the position after it. Raises as `loaded`."""
    rest = text[skip(text, start) :]
    try:
        value, length = json.JSONDecoder().raw_decode(rest)
        return _checked(value), len(text) - len(rest) + length
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _checked(value: Any) -> Any:
    dumped(value).encode()
    return value


def skip(text: str, start: int, pattern: re.Pattern[str] = _SPACE) -> int:
    """The position after what `pattern` matches at `start`, by default white space; `start` if it does not match."""
    match = pattern.match(text, start)
    return match.end() if match else start


def call_of(value: Any, key: str = "arguments") -> ToolCall:
    """The call that the JSON `value` is: an object with "name", and with "arguments" or "parameters".

    `key` is the one of both that the format has; the other one is read too. Without both, or with null, there are no
    arguments.
    """
    if not isinstance(value, dict):
        return failed(f'the call is not a JSON object with "name" and "{key}"')
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return failed('the call has no "name" that is a string')
    keys = [each for each in (key, "arguments", "parameters") if each in value]
    if not keys and (unknown := [each for each in value if each not in ("name", *_OPTIONAL)]):
        return failed(f'"{key}" of the call is missing; it has "{unknown[0]}"', name)
    if any(value[each] != value[keys[0]] for each in keys):
        return failed('the call has both "arguments" and "parameters"', name)
    given = value.get("id")
    return arguments_of(name, value[keys[0]] if keys else None, given if isinstance(given, str) else "")


def arguments_of(name: str, arguments: Any, given: str = "") -> ToolCall:
    """The call of `name` with `arguments`: a JSON object, or one as text; null and empty text are an empty object.

    `given` is the id of the call that the model has written.
    """
    if isinstance(arguments, str) and arguments.strip():
        try:
            arguments = loaded(arguments)
        except ValueError as error:
            return failed(f"the arguments of the call are text that is not valid JSON: {error}", name)
    if arguments is None or arguments == "":
        arguments = {}
    if not isinstance(arguments, Mapping):
        return failed("the arguments of the call are not a JSON object", name)
    return ToolCall(name, arguments, given)


def headed_calls(
    text: str,
    first: int,
    head: re.Pattern[str],
    tail: re.Pattern[str],
    read_head: Callable[[re.Match[str]], ToolCall],
    closing: str,
) -> Iterator[Found]:
    """Calls that are a `head` with the name, a JSON object of arguments, and a `tail`.

    `read_head` returns the call without its arguments, or why the head cannot be read. `closing` is the text that ends
    a call, for the message.
    """
    while match := head.search(text, first):
        call, first = read_head(match), match.end()
        if call.error is None:
            try:
                arguments, first = json_at(text, match.end())
            except ValueError as error:
                call = failed(f"the arguments of the call are not valid JSON: {error}", call.name)
            else:
                end = tail.match(text, first)
                first = end.end() if end else first
                call = (
                    arguments_of(call.name, arguments, call.id)
                    if end
                    else failed(f"the call has text between its arguments and {closing}", call.name)
                )
        yield Found(call, match.start(), first)
