"""Values of JSON that are written as in Python: literals, and calls with keyword arguments."""

from __future__ import annotations

import ast
import keyword
import re
import warnings
from collections.abc import Callable
from typing import Any

from purerl.envs.formats.json_calls import dumped, failed, loaded
from purerl.envs.protocol import ToolCall

__all__ = ["MAX_REJECTED", "call_of_node", "closing_position", "literal", "parsed"]

MAX_REJECTED = 30
"""The number of places at which a text may look like a call without being one. After them, the rest is text: the time
for a long text that repeats itself must not grow with its square."""

_NAMES = {"true": True, "false": False, "null": None}
_STRING = r"'''(?:[^\\]|\\.)*?'''|\"\"\"(?:[^\\]|\\.)*?\"\"\"|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_LINE_BREAK, _ESCAPES = re.compile(r"\\.|[\n\r]", re.DOTALL), {"\n": "\\n", "\r": "\\r", "\\\n": ""}
_TOKEN = re.compile(rf"{_STRING}|[\[\](){{}}'\"]", re.DOTALL)
_RESERVED, _SUFFIX = "|".join(set(keyword.kwlist) - {"True", "False", "None"}), "_of_call"
_KEYWORD = re.compile(rf"{_STRING}|(?<![\w.])({_RESERVED})(?=\s*=[^=])", re.DOTALL)


def parsed(text: str) -> ast.expr:
    """The expression `text`. Raises ValueError if it is none.

    Keywords of Python may be names of arguments, and a string in single quotes may have line breaks.
    """
    text = _KEYWORD.sub(_prepared, text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of unknown escapes such as \d, which stand for themselves
            return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(error.msg) from None
    except (RecursionError, MemoryError):
        raise ValueError("it is nested too deeply") from None


def _prepared(match: re.Match[str]) -> str:
    if match[1]:
        return match[1] + _SUFFIX
    is_long = match[0].startswith(("'''", '"""'))
    return match[0] if is_long else _LINE_BREAK.sub(lambda found: _ESCAPES.get(found[0], found[0]), match[0])


def literal(text: str) -> Any:
    """The value of JSON that the Python literal `text` is. Raises ValueError."""
    return _checked(parsed(text), _value)


def call_of_node(node: ast.expr) -> ToolCall:
    """The call that `node` is: a name, which may have dots, and keyword arguments that are literals."""
    if not isinstance(node, ast.Call) or not (name := _dotted(node.func)):
        return failed("the call is not NAME(ARGUMENT=VALUE, ...)")
    if node.args:
        return failed("an argument of the call has no name: need NAME(ARGUMENT=VALUE, ...)", name)
    try:
        pairs = _checked(node, _pairs)
    except ValueError as error:
        return failed(f"an argument of the call is not a literal of Python: {error}", name)
    is_unique = len({key for key, _ in pairs}) == len(pairs)
    return ToolCall(name, dict(pairs)) if is_unique else failed("an argument of the call is given twice", name)


def _dotted(node: ast.expr) -> str:
    names = list[str]()
    while isinstance(node, ast.Attribute):
        names, node = [node.attr, *names], node.value
    return ".".join([node.id, *names]) if isinstance(node, ast.Name) else ""


def _pairs(call: ast.Call) -> list[tuple[str, Any]]:
    return [pair for each in call.keywords for pair in _named(each.arg, _value(each.value))]


def _named(name: str | None, value: Any) -> list[tuple[str, Any]]:
    if name is not None:
        reserved = name.removesuffix(_SUFFIX)
        return [(reserved if keyword.iskeyword(reserved) else name, value)]
    if not isinstance(value, dict):
        raise ValueError("** without a dict")
    return list(value.items())


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, None | bool | int | float | str):
        return node.value
    if isinstance(node, ast.Name) and node.id in _NAMES:
        return _NAMES[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        keys = [None if key is None else _value(key) for key in node.keys]
        if any(not isinstance(key, str) for key in keys):
            raise ValueError("a dict with a key that is no string")
        return dict(zip(keys, map(_value, node.values), strict=True))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        number = _value(node.operand)
        if type(number) in (int, float):
            return -number if isinstance(node.op, ast.USub) else number
    raise ValueError(ast.unparse(node)[:100])


def _checked(node: Any, read: Callable[[Any], Any]) -> Any:
    """The result of `read`. Raises ValueError if JSON has no such value."""
    try:
        value = read(node)
        loaded(dumped(value))
    except (TypeError, RecursionError):
        raise ValueError("it is nested too deeply") from None
    return value


def closing_position(text: str, start: int) -> int | None:
    """The position after the bracket that closes the one at `start`; None if there is none. Strings do not count."""
    depth = 0
    for match in _TOKEN.finditer(text, start):
        if match[0] in ("'", '"'):
            return None  # a string that does not end
        depth += (match[0] in "[({") - (match[0] in "])}")
        if depth == 0:
            return match.end()
    return None
