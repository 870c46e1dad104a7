"""Values as plain data: a graph in JSON, in which only built-in types exist.

    [[item of a root, ...], [node, ...]]

An item is a scalar of JSON, ``[k]`` for the object with number k, or ``[type, data]`` for a scalar that JSON does not
have. A node is ``[type, [item, ...]]``. Because objects have numbers, an object that is in several places is one object
on the other side too, a list may contain itself, and the depth has no limit. An object of a subclass becomes one of the
built-in type. An iterator becomes a generator of its items.

An answer continues the numbers of the request. It has the objects of the request that have changed, and `decode`
changes them in place: arguments are passed by reference.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterator, MappingView, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from typing import Any, NamedTuple

__all__ = ["MAX_ITERATED", "Graph", "NotPlainError", "decode", "encode"]

MAX_ITERATED = 1000
"""Items of an iterator that are sent. Reading a further one raises NotPlainError."""

_TYPES: dict[str, Any] = {
    "list": list, "tuple": tuple, "dict": dict, "set": set, "frozenset": frozenset, "bytearray": bytearray,
    "deque": deque,
}  # fmt: skip
_IMMUTABLE = ("tuple", "frozenset")
_MAX_INTEGER = 2**63
_NONE: tuple[()] = ()


class NotPlainError(Exception):
    """An object that is no plain data, or a text that is none."""


class Graph(NamedTuple):
    """The objects that both sides know, by number, and their nodes as text."""

    objects: Sequence[Any] = ()
    nodes: Sequence[str] = ()


def encode(roots: Sequence[Any], known: Graph = Graph()) -> tuple[str, Graph]:  # noqa: B008 -- immutable
    """The text of `roots` and of what they contain; of the objects in `known`, those that have changed.

    Raises: NotPlainError; and what an iterator raises.

    >>> encode([1, (2.5, [None])])[0]
    '[[1, [1]], [["list", [null]], ["tuple", [2.5, [0]]]]]'
    """
    objects, parts = _number(roots, known.objects)
    numbers = {id(value): k for k, value in enumerate(objects)}

    def item(value: Any) -> Any:
        scalar = _scalar(value)
        return [numbers[id(value)]] if scalar is _NONE else scalar

    nodes = [*known.nodes, *[""] * (len(objects) - len(known.nodes))]
    sent = ["null"] * len(objects)
    for k, value in enumerate(objects):
        name, children = parts.get(id(value), ("tuple", ()))
        if k >= len(known.nodes) or name not in _IMMUTABLE:
            node = json.dumps([name, [item(child) for child in children]])
            if node != nodes[k]:
                nodes[k] = sent[k] = node
    return f"[{json.dumps([item(root) for root in roots])}, [{', '.join(sent)}]]", Graph(objects, nodes)


def _number(roots: Sequence[Any], known: Sequence[Any]) -> tuple[list[Any], dict[int, tuple[str, list[Any]]]]:
    """All objects: first the known ones, and each tuple after what it contains. And type and children, by id."""
    objects, parts = [*known], {}
    numbered = {id(value) for value in known}
    waiting = [(value, False) for value in (*reversed(roots), *reversed(known))]
    while waiting:
        value, is_done = waiting.pop()
        if is_done:
            objects.append(value)
            continue
        is_known = id(value) in numbered
        if id(value) in parts or _scalar(value) is not _NONE or (is_known and isinstance(value, Iterator)):
            continue
        parts[id(value)] = name, children = _parts(value)
        if name in _IMMUTABLE and not is_known:
            waiting.append((value, True))
        elif not is_known:
            objects.append(value)
        waiting += [(child, False) for child in reversed(children)]
    return objects, parts


def _parts(value: Any) -> tuple[str, list[Any]]:
    """The type that stands for the type of `value`, and what it contains. Methods of subclasses are not called."""
    for name, kind in _TYPES.items():
        if isinstance(value, kind):
            if kind is dict:
                return name, [part for pair in dict.items(value) for part in pair]
            return name, [bytes(value).decode("latin-1")] if kind is bytearray else list(kind.__iter__(value))
    if isinstance(value, Iterator):
        return "generator", list(islice(value, MAX_ITERATED + 1))
    if isinstance(value, MappingView):
        return "list", list(value)
    raise NotPlainError(f"an object of the class {type(value).__qualname__}, which is no plain data")


def _scalar(value: Any) -> Any:
    """`value` as an item if it is a scalar; otherwise `_NONE`."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        number = int.__int__(value)
        return number if -_MAX_INTEGER < number < _MAX_INTEGER else ["int", hex(number)]
    if isinstance(value, float):
        number = float.__float__(value)
        return number if math.isfinite(number) else ["float", repr(number)]
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes):
        return ["bytes", bytes.__getitem__(value, slice(None)).decode("latin-1")]
    return _rare_scalar(value)


def _rare_scalar(value: Any) -> Any:
    if isinstance(value, complex):
        return ["complex", [repr(value.real), repr(value.imag)]]
    if isinstance(value, range):
        return ["range", [_scalar(part) for part in (value.start, value.stop, value.step)]]
    if isinstance(value, Fraction):
        return ["Fraction", [_scalar(value.numerator), _scalar(value.denominator)]]
    if isinstance(value, Decimal):
        return ["Decimal", str(value)]
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return _scalar(value.item())
    return _NONE


def decode(text: str, known: Graph = Graph()) -> tuple[list[Any], Graph]:  # noqa: B008 -- immutable
    """The roots in a text of `encode`. Objects in `known` that have changed are changed in place.

    Raises: NotPlainError for every other text.

    >>> decode(encode([1, (2.5, [None])])[0])[0]
    [1, (2.5, [None])]
    """
    try:
        items, nodes = json.loads(text, parse_constant=_refuse)
        objects, contents = _create(nodes, known.objects)
        for k, (name, children) in contents.items():
            _fill(objects[k], name, [_read(child, objects) for child in children])
        roots = [_read(item, objects) for item in items]
    except Exception as error:  # anybody may have written it
        raise NotPlainError(f"a text that is no plain data: {type(error).__name__}: {error}"[:200]) from error
    return roots, Graph([_unwrap(value) for value in objects], [json.dumps(node) for node in nodes])


class _Replay:
    """A generator whose items are not known yet."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.generator = self._generate()

    def _generate(self) -> Iterator[Any]:
        yield from self.items[:MAX_ITERATED]
        if len(self.items) > MAX_ITERATED:
            raise NotPlainError(f"an iterator with more than {MAX_ITERATED} items")


def _unwrap(value: Any) -> Any:
    return value.generator if isinstance(value, _Replay) else value


def _refuse(constant: str) -> None:
    raise NotPlainError(constant)


def _create(nodes: Sequence[Any], known: Sequence[Any]) -> tuple[list[Any], dict[int, tuple[str, Sequence[Any]]]]:
    """All objects, without the items of those that can be changed; and the types and items of these, by number."""
    objects, contents = [*known], {}
    for k, node in enumerate(nodes):
        if node is None and k < len(known):
            continue
        name, children = node or ("", ())
        if name in _IMMUTABLE and k >= len(known):
            objects.append(_TYPES[name](_read(child, objects) for child in children))
            continue
        if k >= len(known):
            objects.append(_Replay() if name == "generator" else _TYPES[name]())
        elif name in _IMMUTABLE or not isinstance(objects[k], _TYPES[name]):
            raise NotPlainError(f"a change of object {k} to {name}")
        contents[k] = name, children
    return objects, contents


def _fill(value: Any, name: str, items: list[Any]) -> None:
    if name == "generator":
        value.items += items
    elif name == "dict":
        new = dict(zip(items[::2], items[1::2], strict=True))
        dict.clear(value)
        dict.update(value, new)
    elif name == "bytearray":
        value[:] = items[0].encode("latin-1")
    elif name == "set":
        new = set(items)
        set.clear(value)
        set.update(value, new)
    else:
        value.clear()
        value.extend(items)


def _read(item: Any, objects: Sequence[Any]) -> Any:
    if not isinstance(item, list):
        if isinstance(item, dict):
            raise NotPlainError("an item")
        return item
    if len(item) == 1:
        (number,) = item
        if type(number) is not int or number < 0:
            raise NotPlainError("a number of an object")
        return _unwrap(objects[number])
    name, data = item
    return _SCALARS[name](data)


_SCALARS: dict[str, Any] = {
    "int": lambda data: int(data, 16),
    "float": float,
    "bytes": lambda data: data.encode("latin-1"),
    "complex": lambda data: complex(float(data[0]), float(data[1])),
    "range": lambda data: range(*(_read(part, ()) for part in data)),
    "Fraction": lambda data: Fraction(*(_read(part, ()) for part in data)),
    "Decimal": Decimal,
}
