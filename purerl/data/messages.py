"""Messages of rows as chat templates read them: calls of tools, and what other libraries define beside the content.

tool_calls: as OpenAI defines them, ``{"type": "function", "function": {"name": ..., "arguments": ...}}``, or without
the outer structure. Arguments that are JSON text become an object, unless the chat template reads text.

weight: 0 or 1, as OpenAI defines it: whether an assistant turn is learned. Without a weight, it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from purerl.data.nested import parse_json
from purerl.errors import DataError

__all__ = ["find_problem", "is_learned", "with_functions", "with_parsed_calls", "with_text_calls"]

Message = Mapping[str, Any]


def is_learned(message: Message) -> bool:
    """Whether `message` is an assistant turn without the weight 0.

    >>> [is_learned({"role": "assistant", "content": "a", **weight}) for weight in ({}, {"weight": 0}, {"weight": 1})]
    [True, False, True]
    """
    return message["role"] == "assistant" and message.get("weight") != 0


def find_problem(message: Message) -> str | None:
    """Why `message` of a row cannot be used; None if it can. `message` has a role and content, or calls.

    >>> find_problem({"role": "assistant", "content": "a", "weight": 0.5})
    'a message with the weight 0.5; need 0 or 1'
    """
    weight = message.get("weight")
    if weight not in (None, 0, 1):
        return f"a message with the weight {weight!r}; need 0 or 1"
    if weight is not None and weight != 0 and message["role"] != "assistant":
        return f"a message of the role {message['role']!r} with the weight {weight!r}; only assistant turns are learned"
    try:
        json.dumps(with_parsed_calls(message).get("tool_calls"))
    except DataError as error:
        return " ".join(line.strip() for line in str(error).splitlines())
    except TypeError as error:  # transformers would show a template its type in place of the value
        return f"a call with a value that JSON does not have: {error}"
    return None


def with_functions(message: Message) -> Message:
    """`message` with its tool calls in OpenAI's form; without an empty list of them."""
    if not message.get("tool_calls"):
        return {key: value for key, value in message.items() if key != "tool_calls"}
    return {**message, "tool_calls": [_with_function(call) for call in message["tool_calls"]]}


def _with_function(call: Any) -> Mapping[str, Any]:
    if not isinstance(call, Mapping) or not isinstance(call.get("function", call), Mapping):
        raise DataError("a call of a tool", got=f"{call!r:.100}", need="a structure with the name and the arguments")
    if "function" in call:
        return call
    others = {key: value for key, value in call.items() if key not in ("name", "arguments")}
    function = {key: call[key] for key in ("name", "arguments") if key in call}
    return {"type": "function", **others, "function": function}


def with_parsed_calls(message: Message) -> Message:
    """`message` with objects as the arguments of its calls. Raises DataError for text that is no JSON object.

    >>> call = {"function": {"name": "add", "arguments": '{"a": 1}'}}
    >>> with_parsed_calls({"role": "assistant", "tool_calls": [call]})["tool_calls"]
    [{'function': {'name': 'add', 'arguments': {'a': 1}}}]
    """
    return _with_arguments(message, _as_object)


def with_text_calls(message: Message) -> Message:
    """`message` with JSON text as the arguments of its calls, for templates that read text."""
    return _with_arguments(
        message, lambda value: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    )


def _with_arguments(message: Message, convert: Callable[[Any], Any]) -> Message:
    message = with_functions(message)
    calls = message.get("tool_calls")
    return message if calls is None else {**message, "tool_calls": [_converted(call, convert) for call in calls]}


def _converted(call: Mapping[str, Any], convert: Callable[[Any], Any]) -> Mapping[str, Any]:
    function = call["function"]
    if function.get("arguments") is None:
        return call
    return {**call, "function": {**function, "arguments": convert(function["arguments"])}}


def _as_object(arguments: Any) -> Any:
    need, do = "a JSON object", "correct the call, or remove the row"
    try:
        value = arguments if not isinstance(arguments, str) else parse_json(arguments) if arguments.strip() else {}
    except ValueError as error:
        got = f"{arguments!r:.200}: {error}"
        raise DataError("the arguments of a call are not JSON", got=got, need=need, do=do) from error
    if not isinstance(value, Mapping):
        raise DataError("the arguments of a call", got=f"{arguments!r:.200}", need=need, do=do)
    return value
