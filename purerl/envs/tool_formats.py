"""Tool calls in the formats in which models write them.

    hermes     <tool_call>{"name": "calc", "arguments": {"expression": "12 + 30"}}</tool_call>    Qwen 2.5 and 3, Hermes
    qwen_xml   <tool_call><function=calc><parameter=expression>12 + 30</parameter></function></tool_call>    Qwen3-Coder
    llama      {"name": "calc", "parameters": {"expression": "12 + 30"}}    Llama 3.1 and later; several with ; between
    pythonic   [calc(expression='12 + 30')]    Llama 3.2 and 4, LFM2
    mistral    [TOOL_CALLS][{"name": "calc", "arguments": {"expression": "12 + 30"}}]    Mistral; also NAME[ARGS]{...}
    deepseek   <｜tool▁call▁begin｜>function<｜tool▁sep｜>calc⏎```json⏎{"expression": "12 + 30"}⏎```    DeepSeek V3, R1
    harmony    <|channel|>commentary to=functions.calc<|message|>{"expression": "12 + 30"}<|call|>    gpt-oss
    glm        <tool_call>calc<arg_key>expression</arg_key><arg_value>12 + 30</arg_value></tool_call>    GLM 4.5 to 5
    kimi       <|tool_call_begin|>functions.calc:0<|tool_call_argument_begin|>{"expression": "12 + 30"}    Kimi K2
    plain      <calc>12 + 30</calc>    models without a chat template, also tiny ones

`purerl.envs.formats` has a module for each. Small errors are corrected where a call can mean only one thing. A call
that cannot be read becomes a `ToolCall` with an `error`, which the environment can show to the model. What comes before
the first ``</think>`` is thinking, and never a call, unless this ``</think>`` is in an argument.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple, get_args

from purerl.data.chat import Chat
from purerl.data.turn_tokens import Tools, rendered_turn, tool_function
from purerl.envs.formats import (
    ToolFormat,
    deepseek,
    glm,
    harmony,
    hermes,
    kimi,
    llama,
    mistral,
    plain,
    pythonic,
    qwen_xml,
)
from purerl.envs.formats.json_calls import Found, dumped
from purerl.envs.protocol import Message, ToolCall
from purerl.errors import ConfigError, DataError

__all__ = [
    "ParsedTurn",
    "ToolFormat",
    "describe_tools",
    "detect_format",
    "find_tool_format",
    "parse_calls",
    "write_call",
    "write_calls",
]

_FORMATS: Mapping[ToolFormat, ModuleType] = {
    "hermes": hermes, "qwen_xml": qwen_xml, "glm": glm, "deepseek": deepseek, "kimi": kimi, "mistral": mistral,
    "harmony": harmony, "pythonic": pythonic, "llama": llama, "plain": plain,
}  # fmt: skip
_END_OF_THINKING = re.compile(r"</think>|\[/THINK\]")
_IDS = ("call00000", "functions.{name}:0")  # as Mistral requires them, and as Kimi


class ParsedTurn(NamedTuple):
    """The tool calls in a turn, in their order, and its text without them.

    If one of the calls has an error, `content` is the whole text, so that nothing of what was written is lost.
    """

    content: str
    calls: tuple[ToolCall, ...]


def parse_calls(tool_format: ToolFormat, text: str, tools: Tools = ()) -> ParsedTurn:
    """The tool calls in `text`, a turn with its special tokens but without its end token.

    `tools` are needed by the formats `plain`, `qwen_xml` and `glm`, which do not write the types of arguments. Calls of
    unknown tools are calls, except for a call without tags in a text. Never raises an exception because of `text`.
    """
    found = list(_read(tool_format, text, tools))
    calls = tuple(item.call for item in found)
    if any(call.error for call in calls):
        return ParsedTurn(text, calls)
    starts, ends = [item.start for item in found], [item.end for item in found]
    before_calls = [text[end:start].removesuffix("\n") for end, start in zip([0, *ends], starts, strict=False)]
    content = "".join([*before_calls, text[max(ends, default=0) :]])
    return ParsedTurn(content if content.strip() or not calls else "", calls)


def _read(tool_format: ToolFormat, text: str, tools: Tools) -> Iterator[Found]:
    read, end = _FORMATS[tool_format].read, _END_OF_THINKING.search(text)
    if end is None:
        return read(text, 0, tools)
    if not text.lstrip().startswith(("<think>", "[THINK]")):
        found = list[Found](read(text, 0, tools))
        if any(item.start < end.start() < item.end and item.call.error is None for item in found):
            return iter(found)
    return read(text, end.end(), tools)


def write_call(tool_format: ToolFormat, call: ToolCall, tools: Tools = ()) -> str:
    """`call` as a model writes it. `parse_calls` returns the same call.

    Raises: DataError as `write_calls`.
    """
    return write_calls(tool_format, [call], tools)


def write_calls(tool_format: ToolFormat, calls: Sequence[ToolCall], tools: Tools = ()) -> str:
    """`calls` as a model writes them in one turn. `parse_calls` returns the same calls.

    Raises: DataError if the format cannot write them, so that they would be read as others: a number in a format
    without types if the schema of the tool is not in `tools`, or a name with characters that end it.
    """
    try:
        text = _FORMATS[tool_format].write(calls, tools)
        is_same = list(map(_key, parse_calls(tool_format, text, tools).calls)) == list(map(_key, calls))
    except (TypeError, ValueError, RecursionError) as error:
        raise _cannot_write(tool_format, calls, f"a value that JSON does not have: {error}") from error
    if not is_same:
        raise _cannot_write(tool_format, calls, "calls that would be read as others")
    return text


def _key(call: ToolCall) -> tuple[str, str, str | None]:
    return call.name, dumped(call.arguments), call.error


def _cannot_write(tool_format: ToolFormat, calls: Sequence[ToolCall], problem: str) -> DataError:
    need = "ordinary names, values of JSON, and the schemas of tools if the format has no types"
    return DataError(f"the format {tool_format} cannot write a call", got=f"{problem}; {calls!r:.300}", need=need)


def find_tool_format(chat: Chat, tools: Tools) -> ToolFormat:
    """The format in which the chat template renders tool calls; "plain" if prompts are plain text.

    Raises: ConfigError if the template renders calls in none of the formats, or not at all.
    """
    if chat.prompt_format == "text":
        return "plain"
    texts = list[str]()

    def render(turn: Message) -> str:
        try:
            texts.append(rendered_turn(chat, [{"role": "user", "content": "a question"}], turn, tools))
        except DataError:
            texts.append("")
        return texts[-1]

    if found := detect_format(render, tools):
        return found
    raise ConfigError(
        "the chat template renders tool calls in a format that is not known",
        got=repr(texts[0]) if texts[0] else "no tool calls",
        need=f"one of: {', '.join(get_args(ToolFormat))}",
        do="set tool_format to the format that the model writes",
    )


def detect_format(render: Callable[[Message], str], tools: Tools) -> ToolFormat | None:
    """The format in which `render` writes an assistant message with a call of the first tool; None if it is unknown.

    The text must be the call and, except for thinking, nothing else.
    """
    call = ToolCall(str(tool_function(tools[0])["name"]), {"purerl": "a value"})
    for given in _IDS:
        calls = [{"name": call.name, "arguments": dict(call.arguments), "id": given.format(name=call.name)}]
        text = render({"role": "assistant", "content": "", "tool_calls": calls})
        for tool_format in _FORMATS:
            content, read = parse_calls(tool_format, text, tools)
            if read == (call,) and not content.rpartition("</think>")[2].strip():
                return tool_format
    return None


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
    schema = tool.get("parameters", {})
    parameters, required = schema.get("properties", {}), schema.get("required", ())
    lines = [f"{tool['name']}: {tool.get('description', '')}".removesuffix(": ")]
    for name, schema in parameters.items():
        kind = f"{schema.get('type', 'any')}, {'required' if name in required else 'optional'}"
        lines.append(f"  {name} ({kind}): {schema.get('description', '')}".removesuffix(": "))
    call = ToolCall(str(tool["name"]), dict.fromkeys(parameters, "..."))
    return "\n".join([*lines, f"  Call it like this: {write_call(tool_format, call, tools)}"])
