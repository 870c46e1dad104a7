"""JSON and TOML with limited nesting: a text that is nested more deeply is refused like one that cannot be parsed.

Readers of both, and functions that go through what they have read, call themselves for each level. Without a limit the
depth of a file decides where they raise RecursionError.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import Any

__all__ = ["MAX_NESTING", "NestingError", "check_nesting", "read_json", "read_toml"]

MAX_NESTING = 100


class NestingError(ValueError):
    """A value has more than `MAX_NESTING` lists and mappings inside of each other."""


def read_json(text: str | bytes, **options: Any) -> Any:
    """The value of `text`, which is JSON. `options` are those of `json.loads`.

    Raises: ValueError if it is no JSON; NestingError, which is a ValueError, if it is nested too deeply.

    >>> read_json("[" * 5000)
    Traceback (most recent call last):
    purerl.system.nesting.NestingError: more than 100 lists and objects inside of each other
    """
    try:
        value = json.loads(text, **options)
    except RecursionError as error:
        raise _too_deep("objects") from error
    check_nesting(value)
    return value


def read_toml(text: str) -> dict[str, Any]:
    """The tables of `text`, which is TOML.

    Raises: TOMLDecodeError if it is no TOML; NestingError if it is nested too deeply. Both are ValueErrors.

    >>> read_toml("a" + ".a" * 5000 + " = 1")
    Traceback (most recent call last):
    purerl.system.nesting.NestingError: more than 100 lists and tables inside of each other
    """
    try:
        tables = tomllib.loads(text)
    except RecursionError as error:
        raise _too_deep("tables") from error
    check_nesting(tables, "tables")
    return tables


def check_nesting(value: Any, kind: str = "objects") -> None:
    """Raise NestingError if `value` is nested too deeply. `kind` are its mappings in the message."""
    level = [value]
    for _ in range(MAX_NESTING + 1):
        parts = [each.values() if isinstance(each, Mapping) else each for each in level if _has_parts(each)]
        if not parts:
            return
        level = [part for each in parts for part in each if _has_parts(part)]
    raise _too_deep(kind)


def _has_parts(value: Any) -> bool:
    return isinstance(value, dict | list | Mapping | tuple)


def _too_deep(kind: str) -> NestingError:
    return NestingError(f"more than {MAX_NESTING} lists and {kind} inside of each other")
