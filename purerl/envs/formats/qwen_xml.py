"""Calls of Qwen3-Coder, Qwen 3.5 and Nemotron 3: a tag for each argument.

For example::

    <tool_call>
    <function=calc>
    <parameter=expression>
    12 + 30
    </parameter>
    </function>
    </tool_call>

Numbers, booleans and null are written as Python writes them (`True`, `None`), lists and objects as JSON.

What is missing is added where the call can mean only one thing: the tags around <function=...>, the end of the last
function, and the end of an argument before the next one or before the end of the function. A function that is open at
the end of the text may have lost arguments, so it is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from purerl.data.turn_tokens import Tools
from purerl.envs.formats.json_calls import Found, dumped, failed, skip
from purerl.envs.formats.text_values import Schemas, read_value, schemas_of, write_value
from purerl.envs.protocol import ToolCall

__all__ = ["read", "write"]

_TAGS = ("</parameter>", "<parameter=", "</function>")  # an argument that has one of them is written in quotes
_OPENING, _CLOSING = "<tool_call>", "</tool_call>"
_END_TAGS = ("</parameter>", "</function>", _CLOSING)

_BLOCK = re.compile(r"<tool_call>|(?=<function=)")
_FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>")
_END = re.compile(r"</parameter>|(?=<parameter=[^<>\n]+>)|(?=</function>\s*(?:</?tool_call>|<function=|\Z))")
_AFTER_ARGUMENT = re.compile(r"\s*(?:<parameter=|</function>|</tool_call>|\Z)")
_END_OF_FUNCTION = re.compile(r"\s*</function>|(?=\s*</tool_call>)")


def read(text: str, first: int, tools: Tools) -> Iterator[Found]:
    """The calls after `first`. What begins with a tag is a call, also if it cannot be read."""
    schemas = schemas_of(tools)
    while match := _BLOCK.search(text, first):
        calls, first = _read_block(text, match.end(), schemas, is_tagged=bool(match[0]))
        yield from (Found(call, first if index else match.start(), first) for index, call in enumerate(calls))


def _read_block(text: str, position: int, schemas: Schemas, *, is_tagged: bool) -> tuple[list[ToolCall], int]:
    calls = list[ToolCall]()
    while function := _FUNCTION.match(text, position):
        call, position = _read_function(text, function.end(), function[1].strip(), schemas)
        calls.append(call)
        if call.error:
            return [call], _after_closing(text, position)
    if not calls:
        is_closed = _CLOSING in text[position:]
        problem = "is not <function=NAME>...</function>" if is_closed else f"is not closed by {_CLOSING}"
        return [failed(f"the call {problem}")], _after_closing(text, position)
    end = skip(text, position)
    position = end + len(_CLOSING) if (is_closed := text.startswith(_CLOSING, end)) else position
    after = _BLOCK.split(text[position:], maxsplit=1)[0]
    if any(tag in after for tag in _END_TAGS) or (is_tagged and not is_closed and after.strip()):
        return [failed("the call has text or tags after </function>", calls[-1].name)], position + len(after)
    return calls, position


def _after_closing(text: str, position: int) -> int:
    end = text.find(_CLOSING, position)
    return len(text) if end < 0 else end + len(_CLOSING)


def _read_function(text: str, position: int, name: str, schemas: Schemas) -> tuple[ToolCall, int]:
    """The call whose arguments begin at `position`, and the position after its end."""
    arguments, parameters = dict[str, Any](), schemas.get(name, {})
    while parameter := _PARAMETER.match(text, position):
        key, (written, position) = parameter[1].strip(), _read_argument(text, parameter.end())
        if written is None:
            return failed(f"the argument {key!r} is not closed by </parameter>", name), position
        if key in arguments:
            return failed(f"the argument {key!r} is given twice", name), position
        arguments[key] = read_value(written, parameters.get(key), _TAGS)
    if end := _END_OF_FUNCTION.match(text, position):
        return ToolCall(name, arguments), end.end()
    is_open = not text[position:].strip()
    problem = "is not closed by </function>" if is_open else "has text that is not in <parameter=NAME>...</parameter>"
    return failed(f"the call {problem}", name), position


def _read_argument(text: str, start: int) -> tuple[str | None, int]:
    """The argument whose text begins at `start`, and the position after it; None if its end is not certain.

    A <parameter=...> in the argument begins the next one if both are written in the same way, each in a line of its
    own, or neither.
    """
    match = _END.search(text, start)
    if not match:
        return None, len(text)
    is_closed = match[0] == "</parameter>"
    if is_closed and not _AFTER_ARGUMENT.match(text, match.end()):
        return None, match.end()
    if not is_closed and text.startswith("\n", start) != (text[match.start() - 1] == "\n"):
        return None, match.end()
    return text[start : match.start()].removeprefix("\n").removesuffix("\n"), match.end()


def write(calls: Sequence[ToolCall], tools: Tools) -> str:
    """A tag for each call."""
    schemas = schemas_of(tools)
    bodies = (f"<function={call.name}>\n{_arguments(call, schemas)}</function>" for call in calls)
    return "\n".join(f"{_OPENING}\n{body}\n{_CLOSING}" for body in bodies)


def _arguments(call: ToolCall, schemas: Schemas) -> str:
    parameters = schemas.get(call.name, {})
    values = {key: write_value(value, parameters.get(key), _TAGS, _scalar) for key, value in call.arguments.items()}
    return "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())


def _scalar(value: Any) -> str:
    return dumped(value) if isinstance(value, list | dict | float) else str(value)
