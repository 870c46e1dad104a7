"""Interpolations of OmegaConf, ``${a.b}``, in settings by dotted key."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from purerl.errors import ConfigError
from purerl.porting.outcomes import Unknown
from purerl.porting.verl.overrides import parse_value

__all__ = ["resolve"]

_INNERMOST = re.compile(r"\$\{([^${}]*)\}")
_MAX_DEPTH = 30
_MISSING = object()


def resolve(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with the settings that they refer to in place of interpolations.

    ``${a.b}`` is the setting a.b, ``${.b}`` the one beside it, ``${oc.select:a.b,default}`` a.b or the default, and
    ``${oc.env:NAME,default}`` an environment variable. What refers to an `Unknown` is unknown, too.

    Raises: ConfigError that lists every key whose interpolation cannot be resolved.

    >>> resolve({"a.b": 2, "a.c": "${.b}", "d": "run_${a.b}", "e": "${oc.select:x,8}"})
    {'a.b': 2, 'a.c': 2, 'd': 'run_2', 'e': 8}
    """
    resolved, errors = {}, []
    for key, value in values.items():
        try:
            resolved[key] = _resolved(value, key, values, 0)
        except LookupError as error:
            need = "a setting that is there, or a value in place of the interpolation"
            errors.append(str(ConfigError(key, got=f"{value}, and {error.args[0]}", need=need)))
    if errors:
        raise ConfigError("\n".join(errors))
    return resolved


def _resolved(value: Any, key: str, values: Mapping[str, Any], depth: int) -> Any:
    if isinstance(value, list):
        return [_resolved(item, key, values, depth) for item in value]
    if isinstance(value, Mapping):
        return {name: _resolved(item, f"{key}.{name}", values, depth) for name, item in value.items()}
    while isinstance(value, str) and (match := _INNERMOST.search(value)):
        if depth > _MAX_DEPTH:
            raise LookupError("it refers to itself")
        target, found = _referred(match[1].strip(), key, values)
        found = _resolved(found, target, values, depth + 1)
        if match[0] == value or isinstance(found, Unknown):
            return found
        value = value.replace(match[0], "null" if found is None else str(found))
    return value


def _referred(text: str, key: str, values: Mapping[str, Any]) -> tuple[str, Any]:
    """The key that the interpolation with the content `text` at `key` refers to, and its value."""
    resolver, colon, arguments = text.partition(":")
    if not colon:
        target = _absolute(text, key)
        if (found := _at(target, values)) is _MISSING:
            raise LookupError(f"there is no {text}")
        return target, found
    name, comma, default = arguments.partition(",")
    target, found = key, _MISSING
    if resolver == "oc.select":
        target = _absolute(name.strip(), key)
        found = _at(target, values)
    elif resolver == "oc.env":
        found = parse_value(os.environ[name.strip()]) if name.strip() in os.environ else _MISSING
    else:
        raise LookupError(f"{resolver} is not known before a run")
    if found is _MISSING and not comma and resolver == "oc.env":
        raise LookupError(f"the environment variable {name.strip()} is not set")
    if found is _MISSING or (found is None and comma):
        return key, parse_value(default) if comma else None
    return target, found


def _absolute(name: str, key: str) -> str:
    """The whole key of `name`, which may begin with dots, in the value of `key`."""
    dots = len(name) - len(name.lstrip("."))
    parts = key.split(".")[:-dots] if dots else []
    return ".".join([*parts, name[dots:]])


def _at(key: str, values: Mapping[str, Any]) -> Any:
    """The value of `key`, or the table of the settings below it; `_MISSING` if there is neither."""
    if key in values:
        return values[key]
    below = {name[len(key) + 1 :]: value for name, value in values.items() if name.startswith(f"{key}.")}
    return below or _MISSING
