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
    if declared is Any:
        return lambda value: value is not _MISSING
    if (kinds := _kinds(declared)) is not None:
        return lambda value: type(value) in kinds
    if _has_fields(declared):
        fields = [(name, _check(part)) for name, part in _fields(declared).items()]
        return lambda value: (
            type(value) is declared and all(check(getattr(value, name, _MISSING)) for name, check in fields)
        )
    return _CHECKS[get_origin(declared)](get_args(declared))


def _kinds(declared: Any) -> frozenset[type] | None:
    """The types of the values of a `declared` type without parts, such as ``int | None``; None if it has parts."""
    parts = get_args(declared) if get_origin(declared) in (Union, types.UnionType) else (declared,)
    if not all(part is None or (isinstance(part, type) and part is not Any and _is_simple(part)) for part in parts):
        return None
    known = {None: (type(None),), float: (float, int)}
    return frozenset(kind for part in parts for kind in known.get(part, (part,)))


def _is_simple(declared: Any) -> bool:
    return not _has_fields(declared) and not get_args(declared)


def _check_all(declared: Any) -> Check:
    """The function that checks whether each of some values has the type `declared`."""
    if (kinds := _kinds(declared)) is not None:
        return lambda values: kinds.issuperset(map(type, values))
    check = _check(declared)
    return lambda values: all(map(check, values))


def _check_of_union(parts: tuple[Any, ...]) -> Check:
    checks = [*map(_check, parts)]
    return lambda value: any(check(value) for check in checks)


def _check_of_mapping(parts: tuple[Any, ...]) -> Check:
    keys, values = map(_check_all, parts)
    return lambda value: type(value) is dict and keys(value) and values(value.values())


def _check_of_sequence(parts: tuple[Any, ...]) -> Check:
    check = _check_all(parts[0])
    return lambda value: type(value) in (list, tuple) and check(value)


def _check_of_tuple(parts: tuple[Any, ...]) -> Check:
    if parts[1:] == (...,):
        check_all = _check_all(parts[0])
        return lambda value: type(value) is tuple and check_all(value)
    checks = [*map(_check, parts)]
    return lambda value: (
        type(value) is tuple
        and len(value) == len(checks)
        and all(check(item) for check, item in zip(checks, value, strict=True))
    )


_CHECKS: Mapping[Any, Callable[[tuple[Any, ...]], Check]] = {
    Union: _check_of_union,
    types.UnionType: _check_of_union,
    Literal: lambda parts: lambda value: isinstance(value, str) and value in parts,
    Mapping: _check_of_mapping,
    Sequence: _check_of_sequence,
    tuple: _check_of_tuple,
}
"""The functions that make checks of types with parts."""
