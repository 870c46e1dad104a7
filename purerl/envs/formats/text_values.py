r"""Arguments as text without quotes, as formats with a tag for each argument have them.

The type of an argument is in the schema of its tool. A string is written as it is. It is written as a JSON string,
with ``\u003c`` in place of ``<``, only if it would be read as something else: if it has one of the format's tags, or
if the schema allows other values too and one of them has this text. A text is read in this way only if it could not
have been written otherwise, so that every value is read as it was written. In lists and objects with one of the tags,
``<`` is written in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from purerl.data.turn_tokens import Tools, tool_function
from purerl.envs.formats.json_calls import dumped, loaded
from purerl.envs.formats.python_values import literal

__all__ = ["Schemas", "read_value", "schemas_of", "write_value"]

Schemas = Mapping[str, Mapping[str, Any]]
"""The schemas of the parameters of all tools, by the names of tools and of parameters."""

_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array"}
_ALL = frozenset([*_KINDS.values(), "object"])
_LESS = "\\u003c"  # "<" in JSON
_NAMES = {"True": True, "False": False, "None": None, "Null": None}


def schemas_of(tools: Tools) -> Schemas:
    """The schemas of the parameters of all tools, by the names of tools and of parameters."""
    functions = map(tool_function, tools)
    return {str(each["name"]): (each.get("parameters") or {}).get("properties") or {} for each in functions}


def read_value(text: str, schema: Any, tags: Sequence[str]) -> Any:
    """The argument that `text` stands for in a format with these `tags`.

    Literals of JSON and Python are read as what they are, if the schema allows this type; also if it does not allow
    text, so that the check of the arguments reports the type. Everything else is text. `schema` is None for an unknown
    parameter: it is text.
    """
    kinds = frozenset(["string"]) if schema is None else _kinds(schema)
    if kinds != {"string"}:
        try:
            value = _literal(text, may_be_text="string" in kinds)
        except ValueError:
            value = text
        if not isinstance(value, str) and ("string" not in kinds or _kind(value) & kinds):
            return value
        if "string" not in kinds:
            return value
    return _unquoted(text, schema, tags)


def write_value(value: Any, schema: Any, tags: Sequence[str], scalar: Callable[[Any], str]) -> str:
    """The text of the argument `value`; `scalar` writes what is not a string."""
    if not isinstance(value, str):
        text = scalar(value)
        return text.replace("<", _LESS) if any(tag in text for tag in tags) else text
    is_read = not any(tag in value for tag in tags) and read_value(value, schema, tags) == value
    return value if is_read else _quoted(value)


def _quoted(text: str) -> str:
    return dumped(text).replace("<", _LESS)


def _unquoted(text: str, schema: Any, tags: Sequence[str]) -> str:
    """The string that `write_value` has written as the JSON string `text`; otherwise `text`."""
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        return text
    try:
        value = loaded(text)
    except ValueError:
        return text
    return value if isinstance(value, str) and write_value(value, schema, tags, dumped) == text else text


def _literal(text: str, *, may_be_text: bool) -> Any:
    """The value of the literal `text`. One that cannot be text may be in any case, such as TRUE, or a number as +.5."""
    name = text.strip() if may_be_text else text.strip().capitalize()
    if name in _NAMES:
        return _NAMES[name]
    try:
        return loaded(text)
    except ValueError:
        if not may_be_text or text.lstrip()[:1] in ("[", "{"):  # a list or a dict as Python writes it
            return literal(text)
        raise


def _kind(value: Any) -> set[str]:
    kind = _KINDS.get(type(value), "object")
    return {kind, "number"} if kind == "integer" else {kind}


def _kinds(schema: Any) -> frozenset[str]:
    """The types of JSON that `schema` allows; all of them if it does not say."""
    if not isinstance(schema, Mapping):
        return _ALL
    kinds = schema.get("type") or ()
    found = frozenset([kinds] if isinstance(kinds, str) else kinds)
    found = found.union(*map(_kinds, [*schema.get("anyOf", ()), *schema.get("oneOf", ())]))
    choices = schema.get("enum") or ([schema["const"]] if "const" in schema else ())
    return found or frozenset().union(*map(_kind, choices)) or _ALL
