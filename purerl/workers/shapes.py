"""Whether a value has the type of an annotation, in all of its parts: for values that another process has sent."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs

__all__ = ["classes_of", "has_shape"]

Check = Callable[[Any], bool]

_MISSING = object()  # the value of a field that an object does not have


def has_shape(value: Any, declared: Any) -> bool:
    """Whether `value` has the type `declared`: a union of classes with fields, mappings, literals, numbers, ...

    >>> has_shape({"a": (1.0, 2)}, Mapping[str, tuple[float, int]]), has_shape({"a": "b"}, Mapping[str, float])
    (True, False)
    """
    return _check(declared)(value)


@cache
def classes_of(declared: Any) -> frozenset[type]:
    """The classes with fields in the type `declared`.

    >>> classes_of(Mapping[str, float] | None)
    frozenset()
    """
    return frozenset(_classes(declared))


def _classes(declared: Any) -> Iterator[type]:
    if _has_fields(declared):
        yield declared
    for part in _fields(declared).values() if _has_fields(declared) else get_args(declared):
        yield from _classes(part)


def _has_fields(declared: Any) -> bool:
    return isinstance(declared, type) and (attrs.has(declared) or hasattr(declared, "_fields"))


@cache
def _fields(kind: Any) -> dict[str, Any]:
    """The types of the fields of a class."""
    names = [field.name for field in attrs.fields(kind)] if attrs.has(kind) else kind._fields
    hints = get_type_hints(kind)
    return {name: hints[name] for name in names}


@cache
def _check(declared: Any) -> Check:
    """The function that checks whether a value has the type `declared`."""
    origin = get_origin(declared)
    if declared is Any:
        return lambda value: value is not _MISSING
    if origin in (Union, types.UnionType):
        checks = [*map(_check, get_args(declared))]
        return lambda value: any(check(value) for check in checks)
    if origin is Literal:
        return lambda value: isinstance(value, str) and value in get_args(declared)
    if origin is Mapping:
        key, item = map(_check, get_args(declared))
        return lambda value: type(value) is dict and all(key(k) and item(v) for k, v in value.items())
    if origin in (Sequence, tuple):
        return _check_of_sequence(declared)
    return _check_of_class(declared)


def _check_of_class(declared: Any) -> Check:
    if _has_fields(declared):
        fields = [(name, _check(part)) for name, part in _fields(declared).items()]
        return lambda value: (
            type(value) is declared and all(check(getattr(value, name, _MISSING)) for name, check in fields)
        )
    kinds = {None: (type(None),), float: (float, int)}.get(declared, (declared,))
    return lambda value: type(value) in kinds


def _check_of_sequence(declared: Any) -> Check:
    parts = get_args(declared)
    if get_origin(declared) is tuple and parts[1:] != (...,):
        checks = [*map(_check, parts)]
        return lambda value: (
            type(value) is tuple
            and len(value) == len(checks)
            and all(check(item) for check, item in zip(checks, value, strict=True))
        )
    kinds, check = (tuple,) if get_origin(declared) is tuple else (list, tuple), _check(parts[0])
    return lambda value: type(value) in kinds and all(map(check, value))
