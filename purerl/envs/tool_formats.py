"""Tool calls in the formats in which models write them.

    hermes    <tool_call>{"name": "calc", "arguments": {"expression": "12 + 30"}}</tool_call>    Qwen 2.5 and 3, Hermes
    qwen_xml  <tool_call><function=calc><parameter=expression>12 + 30</parameter></function></tool_call>    Qwen3-Coder
    llama     {"name": "calc", "parameters": {"expression": "12 + 30"}}    Llama 3.1 and later; several with ; between
    plain     <calc>12 + 30</calc>    models without a chat template, also tiny ones

In the format `plain`, the text between the tags is the argument of a tool with one parameter, without quotes if it is a
string. For all other tools it is a JSON object of arguments. Only names of tools are tags.

A call that cannot be read becomes a `ToolCall` with an `error`, which the environment can show to the model. What comes
before the first ``</think>`` is thinking, and never a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args

from purerl.data.chat import Chat
from purerl.data.turn_tokens import Tools, rendered_turn, tool_function
from purerl.envs.protocol import ToolCall
from purerl.errors import ConfigError, DataError

__all__ = ["ParsedTurn", "ToolFormat", "describe_tools", "find_tool_format", "parse_calls", "write_call"]

ToolFormat = Literal["hermes", "qwen_xml", "llama", "plain"]

_PYTHON_TAG = "<|python_tag|>"


class ParsedTurn(NamedTuple):
    """The tool calls in a turn, in their order, and its text without them.

    If one of the calls has an error, `content` is the whole text, so that nothing of what was written is lost.
    """

    content: str
    calls: tuple[ToolCall, ...]


class _Found(NamedTuple):
    call: ToolCall
    start: int
    end: int


def parse_calls(tool_format: ToolFormat, text: str, tools: Tools = ()) -> ParsedTurn:
    """The tool calls in `text`, a turn with its special tokens but without its end token.

    `tools` are needed by the formats `plain` and `qwen_xml`, which do not write the types of arguments. The result does
    not depend on them otherwise: calls of unknown tools are calls. Never raises an exception because of `text`.
    """
    first = text.find("</think>") + len("</think>") if "</think>" in text else 0
    found = list(_READERS[tool_format](text, first, tools))
    calls = tuple(item.call for item in found)
    if any(call.error for call in calls):
        return ParsedTurn(text, calls)
    starts, ends = [item.start for item in found], [item.end for item in found]
    before_calls = [text[end:start].removesuffix("\n") for end, start in zip([0, *ends], starts, strict=False)]
    return ParsedTurn("".join([*before_calls, text[max(ends, default=0) :]]), calls)


def write_call(tool_format: ToolFormat, call: ToolCall, tools: Tools = ()) -> str:
    """`call` as a model writes it. `parse_calls` returns the same call."""
    return _WRITERS[tool_format](call, tools)


def find_tool_format(chat: Chat, tools: Tools) -> ToolFormat:
    """The format in which the chat template renders tool calls; "plain" if prompts are plain text.

    Raises: ConfigError if the template renders calls in none of the formats, or not at all.
    """
    if chat.prompt_format == "text":
        return "plain"
    call = ToolCall(str(tool_function(tools[0])["name"]), {"purerl": "a value"})
    rendered = _rendered_call(chat, call, tools)
    for tool_format in ("hermes", "qwen_xml", "llama"):
        if parse_calls(tool_format, rendered, tools).calls == (call,):
            return tool_format
    raise ConfigError(
        "the chat template renders tool calls in a format that is not known",
        got=repr(rendered) if rendered else "no tool calls",
        need=f"one of: {', '.join(get_args(ToolFormat))}",
        do="set tool_format to the format that the model writes",
    )


def _rendered_call(chat: Chat, call: ToolCall, tools: Tools) -> str:
    calls = [{"name": call.name, "arguments": dict(call.arguments), "id": "call00000"}]
    try:
        turn = {"role": "assistant", "content": "", "tool_calls": calls}
        return rendered_turn(chat, [{"role": "user", "content": "a question"}], turn, tools)
    except DataError:
        return ""


def describe_tools(tools: Tools, tool_format: ToolFormat = "plain") -> str:
    """A text that tells a model without a chat template which tools it has, and how it calls them.

    >>> parameters = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    >>> print(describe_tools([{"name": "calc", "description": "Evaluate an expression.", "parameters": parameters}]))
    calc: Evaluate an expression.
      text (string, required)
      Call it like this: <calc>...</calc>
    """
    return "\n".join(_description(tool, tools, tool_format) for tool in map(tool_function, tools))


def _description(tool: Mapping[str, Any], tools: Tools, tool_format: ToolFormat) -> str:
    parameters, required = _parameters(tool), tool.get("parameters", {}).get("required", ())
    lines = [f"{tool['name']}: {tool.get('description', '')}".removesuffix(": ")]
    for name, schema in parameters.items():
        kind = f"{schema.get('type', 'any')}, {'required' if name in required else 'optional'}"
        lines.append(f"  {name} ({kind}): {schema.get('description', '')}".removesuffix(": "))
    call = ToolCall(str(tool["name"]), dict.fromkeys(parameters, "..."))
    return "\n".join([*lines, f"  Call it like this: {write_call(tool_format, call, tools)}"])


def _failed(error: str, name: object = "") -> ToolCall:
    return ToolCall(name if isinstance(name, str) else "", error=error)


def _loaded(text: str) -> Any:
    """The value that `text` is in JSON. Raises ValueError, also for values that cannot be written to a file."""
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def _call_in_json(text: str, key: str) -> ToolCall:
    """The call that the JSON object `text` is, with its arguments in `key`."""
    try:
        value = _loaded(text)
    except ValueError as error:
        return _failed(f"the call is not valid JSON: {error}")
    if not isinstance(value, dict):
        return _failed(f'the call is not a JSON object with "name" and "{key}"')
    name, arguments = value.get("name"), value.get(key)
    if not isinstance(name, str) or not name:
        return _failed('the call has no "name" that is a string')
    if not isinstance(arguments, dict):
        return _failed(f'"{key}" of the call is missing or not a JSON object', name)
    return ToolCall(name, arguments)


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _parameters(tool: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    return tool.get("parameters", {}).get("properties", {})


def _value(text: str, schema: Mapping[str, Any] | None) -> Any:
    """The argument that `text` stands for: text itself if a string is allowed, otherwise JSON if it is valid."""
    if schema is None or _allows_string(schema):
        return text
    try:
        return _loaded(text)
    except ValueError:
        return text  # the type is wrong, which the check of the arguments reports


def _allows_string(schema: Mapping[str, Any]) -> bool:
    kinds = schema.get("type", [])
    options = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    return "string" in ([kinds] if isinstance(kinds, str) else kinds) or any(map(_allows_string, options))


def _written(value: Any, schema: Mapping[str, Any] | None) -> str:
    return value if isinstance(value, str) and (schema is None or _allows_string(schema)) else _dumped(value)


def _enclosed(text: str, first: int, read: Callable[[str], ToolCall]) -> Iterator[_Found]:
    """Calls between <tool_call> and </tool_call>."""
    for match in re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL).finditer(text, first):
        call = read(match[1].strip()) if match[2] else _failed("the call is not closed by </tool_call>")
        yield _Found(call, *match.span())


def _read_hermes(text: str, first: int, tools: Tools) -> Iterator[_Found]:
    return _enclosed(text, first, lambda body: _call_in_json(body, "arguments"))


def _write_hermes(call: ToolCall, tools: Tools) -> str:
    return f'<tool_call>\n{{"name": {_dumped(call.name)}, "arguments": {_dumped(call.arguments)}}}\n</tool_call>'


def _read_llama(text: str, first: int, tools: Tools) -> Iterator[_Found]:
    """Calls that are the whole turn: JSON objects, or anything after <|python_tag|>."""
    start = first + len(text[first:]) - len(text[first:].lstrip())
    is_tagged = text.startswith(_PYTHON_TAG, start)
    start += len(_PYTHON_TAG) * is_tagged
    body = text[start:].strip()
    if not is_tagged and not re.match(r'\{\s*"(name|type|parameters)"\s*:', body):
        return
    for index, piece in enumerate(list(_split_objects(body))):
        yield _Found(_call_in_json(piece, "parameters"), first if index == 0 else len(text), len(text))


def _split_objects(text: str) -> Iterator[str]:
    """The JSON objects in `text`, with or without ``;`` between them, and the rest, which is not JSON."""
    decoder, position = json.JSONDecoder(), 0
    while position < len(text):
        try:
            end = decoder.raw_decode(text, position)[1]
        except (ValueError, RecursionError):
            end = len(text)
        yield text[position:end]
        separator = re.compile(r"[\s;]*").match(text, end)
        position = separator.end() if separator else end


def _write_llama(call: ToolCall, tools: Tools) -> str:
    return f'{{"name": {_dumped(call.name)}, "parameters": {_dumped(call.arguments)}}}'


def _schemas(tools: Tools) -> dict[str, Mapping[str, Mapping[str, Any]]]:
    """The schemas of the parameters of all tools, by the names of tools and parameters."""
    return {str(tool["name"]): _parameters(tool) for tool in map(tool_function, tools)}


def _read_qwen_xml(text: str, first: int, tools: Tools) -> Iterator[_Found]:
    schemas = _schemas(tools)
    return _enclosed(text, first, lambda body: _call_in_xml(body, schemas))


def _call_in_xml(text: str, schemas: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> ToolCall:
    function = re.fullmatch(r"<function=([^>\n]+)>(.*)</function>", text, re.DOTALL)
    if not function:
        return _failed("the call is not <function=NAME>...</function>")
    name, body = function[1].strip(), function[2]
    pattern = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
    if pattern.sub("", body).strip():
        return _failed("the call has text that is not in <parameter=NAME>...</parameter>", name)
    parameters = schemas.get(name, {})
    arguments = {
        match[1].strip(): _value(match[2], parameters.get(match[1].strip())) for match in pattern.finditer(body)
    }
    return ToolCall(name, arguments)


def _write_qwen_xml(call: ToolCall, tools: Tools) -> str:
    schemas = _schemas(tools).get(call.name, {})
    parameters = "".join(
        f"<parameter={name}>\n{_written(value, schemas.get(name))}\n</parameter>\n"
        for name, value in call.arguments.items()
    )
    return f"<tool_call>\n<function={call.name}>\n{parameters}</function>\n</tool_call>"


def _read_plain(text: str, first: int, tools: Tools) -> Iterator[_Found]:
    schemas = _schemas(tools)
    names = "|".join(map(re.escape, sorted(schemas, key=len, reverse=True))) or "(?!)"
    for match in re.compile(rf"<({names})>(.*?)(</\1>|\Z)", re.DOTALL).finditer(text, first):
        name, body, closing = match.groups()
        unclosed = _failed(f"the call is not closed by </{name}>", name)
        yield _Found(_call_in_tags(name, body, schemas[name]) if closing else unclosed, *match.span())


def _call_in_tags(name: str, body: str, parameters: Mapping[str, Mapping[str, Any]]) -> ToolCall:
    if len(parameters) == 1:
        return ToolCall(name, {key: _value(body, schema) for key, schema in parameters.items()})
    try:
        arguments = _loaded(body) if body.strip() else {}
    except ValueError as error:
        return _failed(f"the arguments are not valid JSON: {error}", name)
    is_object = isinstance(arguments, dict)
    return ToolCall(name, arguments) if is_object else _failed("the arguments are not a JSON object", name)


def _write_plain(call: ToolCall, tools: Tools) -> str:
    parameters = _schemas(tools).get(call.name, {})
    if len(parameters) != 1:
        return f"<{call.name}>{_dumped(call.arguments) if call.arguments else ''}</{call.name}>"
    body = "".join(_written(value, parameters.get(key)) for key, value in call.arguments.items())
    return f"<{call.name}>{body}</{call.name}>"


_READERS: Mapping[ToolFormat, Callable[[str, int, Tools], Iterator[_Found]]] = {
    "hermes": _read_hermes, "qwen_xml": _read_qwen_xml, "llama": _read_llama, "plain": _read_plain,
}  # fmt: skip
_WRITERS: Mapping[ToolFormat, Callable[[ToolCall, Tools], str]] = {
    "hermes": _write_hermes, "qwen_xml": _write_qwen_xml, "llama": _write_llama, "plain": _write_plain,
}  # fmt: skip
