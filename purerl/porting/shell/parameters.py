"""Values of shell variables, their items, and changes such as ``${X%.sh}``."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase

__all__ = ["Value", "changed", "first", "item_of"]

Value = str | list[str] | dict[str, str]
"""The value of a variable: a text, an array, or an array with names."""

_OPERATORS = ("##", "#", "%%", "%", "//", "/", "^^", "^", ",,", ",", ":")


def first(value: Value) -> str:
    """The text of a variable; of an array its first item."""
    if isinstance(value, dict):
        return value.get("0", "")
    return value if isinstance(value, str) else next(iter(value), "")


def item_of(value: Value, index: str, expand: Callable[[str], str]) -> str | list[str] | None:
    """``value[index]``; all items for ``@``, and None without such an item. `expand` expands `index`."""
    if index in ("@", "*"):
        return [value] if isinstance(value, str) else [*(value.values() if isinstance(value, dict) else value)]
    key = expand(index)
    if isinstance(value, dict):
        return value.get(key)
    items = [value] if isinstance(value, str) else value
    return items[int(key)] if re.fullmatch(r"-?\d+", key) and -len(items) <= int(key) < len(items) else None


def changed(
    value: str | list[str], change: str, expand: Callable[[str], str], arithmetic: Callable[[str], str]
) -> str | list[str] | None:
    """`value` without a prefix or a suffix, with replacements, a part of it, or in other letters; None if not known.

    change      the operator and its argument, such as ``%.sh`` or ``/a/b``
    expand      expands the argument
    arithmetic  evaluates the numbers of a part
    """
    if isinstance(value, list):
        results = [changed(item, change, expand, arithmetic) for item in value]
        return None if None in results else [str(result) for result in results]
    operator = next((each for each in _OPERATORS if change.startswith(each)), None)
    if operator is None or "\ue000" in value:
        return None
    argument = expand(change[len(operator) :])
    match operator[0]:
        case "#" | "%":
            return _trimmed(value, argument, operator)
        case "/":
            pattern, _, new = argument.partition("/")
            return value.replace(pattern, new, -1 if operator == "//" else 1)
        case ":":
            return _part(value, [arithmetic(each) for each in argument.split(":")])
        case _:
            other = value.upper() if operator[0] == "^" else value.lower()
            return other if len(operator) == 2 else other[:1] + value[1:]


def _part(value: str, numbers: list[str]) -> str | None:
    if not all(re.fullmatch(r"-?\d+", number) for number in numbers):
        return None
    start, *length = map(int, numbers)
    return value[start:][: length[0]] if length else value[start:]


def _trimmed(value: str, pattern: str, operator: str) -> str:
    """`value` without its shortest prefix or suffix that matches `pattern`; the longest for a double operator."""
    is_prefix, lengths = operator[0] == "#", range(len(value) + 1)
    for n in reversed(lengths) if len(operator) == 2 else lengths:
        start, end = (n, len(value)) if is_prefix else (0, len(value) - n)
        if fnmatchcase(value[:n] if is_prefix else value[end:], pattern):
            return value[start:end]
    return value
