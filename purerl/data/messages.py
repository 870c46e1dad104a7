"""Messages of rows as chat templates read them: calls of tools, and what other libraries define beside the content.

tool_calls: as OpenAI defines them, ``{"type": "function", "function": {"name": ..., "arguments": ...}}``, or without
the outer structure. Arguments that are JSON text become an object, unless the chat template reads text. A call without
arguments, or with null, has the arguments {}. Other keys, such as ``args``, are refused: no template would read them.

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

_KEYS_OF_CALLS, _KEYS_OF_FUNCTIONS = ("function", "id", "type", "index"), ("name", "arguments")
_OTHER_NAMES = {
    "arguments": ("args", "argument", "parameters", "params", "input", "inputs", "kwargs", "tool_input", "tool_args"),
    "name": ("tool", "tool_name", "function_name", "func", "action"),
}
"""The names that other libraries have for the keys of a function."""


def is_learned(message: Message) -> bool:
    """Whether `message` is an assistant turn without the weight 0.

    >>> [is_learned({"role": "assistant", "content": "a", **weight}) for weight in ({}, {"weight": 0}, {"weight": 1})]
    [True, False, True]
    """
    return message["role"] == "assistant" and message.get("weight") != 0


def find_problem(message: Message) -> str | None:
    """The problem of `message` in a row; None if it can be used. `message` has a role and content, or calls.

    >>> find_problem({"role": "assistant", "content": "a", "weight": 0.5})
    'a message with the weight 0.5; need 0 or 1'
    """
    weight = message.get("weight")
    if weight not in (None, 0, 1):
        return f"a message with the weight {weight!r}; need 0 or 1"
    if weight is not None and weight != 0 and message["role"] != "assistant":
        return f"a message of the role {message['role']!r} with the weight {weight!r}; only assistant turns are learned"
    try:
        calls = with_parsed_calls(message).get("tool_calls", ())
        json.dumps(calls, allow_nan=False)
    except DataError as error:
        return " ".join(line.strip() for line in str(error).splitlines())
    except (TypeError, ValueError) as error:  # of the former, transformers would show a template the type only
        return f"a call with a value that JSON does not have: {error}"
    return next(filter(None, map(_problem_of_keys, calls)), None)


def _problem_of_keys(call: Message) -> str | None:
    """The problem of the keys of `call`, in OpenAI's form; None if they can be used."""
    function = call["function"]
    pairs = [(call, _KEYS_OF_CALLS), (function, _KEYS_OF_FUNCTIONS)]
    unknown = [key for part, known in pairs for key, value in part.items() if key not in known and value is not None]
    if unknown:
        return f"a call with the key {unknown[0]!r}, which no template reads; {_remedy(unknown[0])}"
    is_named = isinstance(function.get("name"), str) and function["name"]
    return None if is_named else "a call without the name of a function; need the key 'name'"


def _remedy(key: str) -> str:
    if key in _KEYS_OF_FUNCTIONS:
        return f"put {key!r} into 'function'"
    known = next((known for known, others in _OTHER_NAMES.items() if key in others), None)
    return f"rename {key!r} to {known!r}" if known else f"remove {key!r}"


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
    return _with_arguments(message, _as_text)


def _with_arguments(message: Message, convert: Callable[[Any], Any]) -> Message:
    message = with_functions(message)
    calls = message.get("tool_calls")
    return message if calls is None else {**message, "tool_calls": [_converted(call, convert) for call in calls]}


def _converted(call: Mapping[str, Any], convert: Callable[[Any], Any]) -> Mapping[str, Any]:
    function, arguments = call["function"], call["function"].get("arguments")
    return {**call, "function": {**function, "arguments": convert({} if arguments is None else arguments)}}


def _as_text(arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments if arguments.strip() else "{}"
    return json.dumps(arguments, ensure_ascii=False)


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
