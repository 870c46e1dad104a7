"""Calls of Llama 3.2 and 4 as Python writes them: a list of calls with keyword arguments.

For example::

    [calc(expression='12 + 30'), time(city='Rome', hours=12)]

<|python_start|> and <|python_end|> may be around the list, or the tags of LFM2. A list that is the whole turn has calls
of any names. A list in a text must have calls of known tools only, and is text otherwise, as is a list of formulas.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Collection, Iterator, Sequence

from purerl.data.turn_tokens import Tools, tool_function
from purerl.envs.formats.json_calls import Found, dumped, failed, loaded, skip
from purerl.envs.formats.python_values import MAX_REJECTED, call_of_node, closing_position, parsed
from purerl.envs.protocol import ToolCall

__all__ = ["read", "write"]

_START = re.compile(r"(?:<\|(?:python_start|python_tag|tool_call_start)\|>\s*)?\[\s*(?=[A-Za-z_][\w.]*\s*\()")
_END = re.compile(r"\s*<\|(?:python_end|tool_call_end)\|>")


def read(text: str, first: int, tools: Tools) -> Iterator[Found]:
    """The calls after `first`. A turn that is nothing but a list of calls is one, also if it cannot be read."""
    names, position, rejected = {str(tool_function(tool)["name"]) for tool in tools}, first, 0
    while rejected < MAX_REJECTED and (match := _START.search(text, position)):
        start = text.index("[", match.start())
        end = closing_position(text, start)
        stop = len(text) if end is None else skip(text, end, _END)
        is_turn = not (text[first : match.start()] + text[stop:]).strip()
        calls = _read_list(text[start:end], names, is_turn=is_turn)
        position, rejected = (stop, rejected) if calls else (match.end(), rejected + 1)
        yield from (Found(call, stop if index else match.start(), stop) for index, call in enumerate(calls))


def _read_list(text: str, names: Collection[str], *, is_turn: bool) -> list[ToolCall]:
    """The calls in the list `text`; none if it is text."""
    try:
        node = parsed(text)
    except ValueError as error:
        return [failed(f"the list of calls is not valid Python: {error}")] * is_turn
    if not isinstance(node, ast.List) or not all(isinstance(item, ast.Call) for item in node.elts):
        return []
    calls = list(map(call_of_node, node.elts))
    if all(call.name in names for call in calls):
        return calls
    if is_turn:
        return calls if not any(item.args for item in node.elts if isinstance(item, ast.Call)) else []
    return calls if not names and not any(call.error for call in calls) else []


def write(calls: Sequence[ToolCall], tools: Tools) -> str:
    """One list. Arguments whose names Python does not allow are in a dict: ``**{"my-name": 1}``."""
    return f"[{', '.join(map(_written, calls))}]"


def _written(call: ToolCall) -> str:
    arguments = loaded(dumped(call.arguments))
    plain = {name: value for name, value in arguments.items() if name.isidentifier() and not keyword.iskeyword(name)}
    other = {name: value for name, value in arguments.items() if name not in plain}
    pairs = [f"{name}={value!r}" for name, value in plain.items()] + [f"**{other!r}"] * bool(other)
    return f"{call.name}({', '.join(pairs)})"
