"""Values as bytes and back, without pickles: reading bytes of a stranger executes no code.

A message is JSON, and after it the bytes of tensors, arrays and long lists of numbers:

    8 bytes   length of the JSON, little-endian
    JSON      None, booleans, numbers, strings and lists as they are; of another value an object with one key, its kind
    buffers   to which the JSON refers by position and size

What can be sent is data: beside the above tuples, sets, mappings, bytes, paths, dtypes, tensors (they arrive on the
CPU), arrays and numbers of numpy, members of enumerations, exceptions, and objects of the classes of purerl, and of
those of torch that describe a checkpoint, if they are attrs classes, dataclasses or named tuples. Their fields are set
as they were: no method of the class is called. Strings of another class arrive as plain strings.

numpy and torch are imported only where a message has something of theirs, so that worker processes start fast.
"""

from __future__ import annotations

import builtins
import dataclasses
import json
import reprlib
import sys
from array import array
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from purerl.errors import EngineError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

__all__ = ["decode", "encode"]

_ENCODER = json.JSONEncoder(separators=(",", ":"))
_LENGTH = 8  # bytes of the length of the JSON
_LONG = 16  # lists of at least so many numbers are buffers
_NUMBERS = {int: "q", float: "d", bool: "b"}
_ARRAY_KINDS = "biufcSUmM"  # no objects, and no structures
_PLAIN = frozenset((type(None), bool, int, float, str))
_OF_TORCH = tuple(f"torch.distributed.checkpoint.{name}" for name in ("metadata", "planner", "storage", "filesystem"))
_CONSTANTS = ("dtype", "layout", "memory_format")  # types of torch whose values have names


def encode(value: Any) -> bytes:
    """`value` as bytes, for `decode`.

    Raises: EngineError if it contains something that is not data.

    >>> decode(encode({"loss": (0.5, None), 3: [1] * 20})) == {"loss": (0.5, None), 3: [1] * 20}
    True
    """
    buffers = _Buffers()
    try:
        text = _ENCODER.encode(_node(value, buffers)).encode()
    except RecursionError:
        raise _no_data(type(value), "a value that contains itself, or is nested too deeply") from None
    except ValueError as error:  # Python writes no integers of more than 4300 digits
        raise _no_data(type(value), str(error)) from None
    return b"".join((len(text).to_bytes(_LENGTH, "little"), text, *buffers.parts))


def decode(message: bytes, classes: Collection[type] | None = None) -> Any:
    """The value that `encode` has made `message` of.

    classes  the classes whose objects it may have; None: all that can be sent. Their modules are imported

    Raises: EngineError if it is not such a message.
    """
    view = memoryview(message)
    end = _LENGTH + int.from_bytes(view[:_LENGTH], "little")
    known = None if classes is None else _by_name(frozenset(classes))
    try:
        if end > len(message):
            raise ValueError("it is not complete")
        return _value(json.loads(str(view[_LENGTH:end], "ascii")), _Source(view[end:], known))
    except Exception as error:  # what other bytes raise depends on them
        got = f"{len(message)} bytes that cannot be read: {error!r:.200}"
        need = "one that another process of this run has sent, which has the same version of purerl"
        raise EngineError("a message", got=got, need=need) from error


class _Buffers:
    """The buffers of a message."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> list[int]:
        """Append `data`; return its position and its size."""
        self.parts.append(data)
        self._size += len(data)
        return [self._size - len(data), len(data)]


class _Source(NamedTuple):
    """The buffers of a message that is read, and the classes that it may name, by module and name."""

    buffers: memoryview
    classes: Mapping[tuple[str, str], type] | None

    def read(self, start: int, size: int) -> memoryview:
        if type(start) is not int or type(size) is not int or not 0 <= start <= start + size <= len(self.buffers):
            raise ValueError(f"no buffer of {size!r:.50} bytes at {start!r:.50}")
        return self.buffers[start : start + size]


# --- writing -------------------------------------------------------------------------------------------------------


def _node(value: Any, buffers: _Buffers) -> Any:
    """`value` as JSON."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind in (list, tuple):
        numbers = _numbers(value, buffers)
        items = [_node(item, buffers) for item in value] if numbers is None else {"numbers": numbers}
        return items if kind is list else {"tuple": items}
    if kind is dict and all(type(key) is str for key in value):
        return {"dict": {k: v if type(v) in _PLAIN else _node(v, buffers) for k, v in value.items()}}
    name, write = _writer(kind)
    return {name: write(value, buffers)}


@cache
def _writer(kind: type) -> tuple[str, Callable[[Any, _Buffers], Any]]:
    """The kind of the values of a class, and the function that writes them."""
    writers = [writer for type_, writer in _WRITERS.items() if issubclass(kind, type_)]
    bases = (f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__)
    libraries = [_LIBRARY_WRITERS[base] for base in bases if base in _LIBRARY_WRITERS]
    return next(iter([*libraries, *writers]), ("object", _object))


def _numbers(values: list[Any] | tuple[Any, ...], buffers: _Buffers) -> list[Any] | None:
    """The buffer of long `values` that are numbers of one type; otherwise None."""
    types = set(map(type, values)) if len(values) >= _LONG else set()
    code = _NUMBERS.get(types.pop()) if len(types) == 1 else None
    if code is None:
        return None
    try:
        return [code, *buffers.add(array(code, values).tobytes())]
    except OverflowError:  # more than 64 bits
        return None


def _tensor(value: Tensor, buffers: _Buffers) -> Any:
    import torch

    flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return [_name(value.dtype), [*value.shape], *buffers.add(flat.numpy().tobytes())]


def _array(value: np.ndarray | np.generic, buffers: _Buffers) -> Any:
    if value.dtype.kind not in _ARRAY_KINDS:
        raise _no_data(value, f"an array of dtype {value.dtype}")
    return [value.dtype.str, [*value.shape], *buffers.add(value.tobytes())]


def _error(error: BaseException, buffers: _Buffers) -> Any:
    """An exception of Python or purerl with its attributes; another one is an EngineError with its text."""
    name = type(error).__qualname__
    if type(error) is not getattr(builtins, name, None) and not type(error).__module__.startswith("purerl."):
        error = EngineError(f"{name}: {error}")
    try:
        # OSError has the name of its file only here.
        arguments = error.__reduce__()[1] if type(error).__module__ == "builtins" else error.args
        state = [_node([*arguments], buffers), _node(dict(vars(error)), buffers)]
    except EngineError:
        error = EngineError(f"{name}: {error}")
        state = [[*error.args], {"dict": {}}]
    return [_class_name(type(error)), *state]


def _object(value: Any, buffers: _Buffers) -> Any:
    """An object of a class with fields that purerl or torch defines."""
    kind = type(value)
    names = _fields(kind)
    if names is None or not _is_known(kind.__module__):
        raise _no_data(value, f"an object of type {kind.__module__}.{kind.__qualname__}")
    fields = {name: _node(getattr(value, name), buffers) for name in names if hasattr(value, name)}
    return [_class_name(kind), fields]


_WRITERS: dict[type | tuple[type, ...], tuple[str, Callable[[Any, _Buffers], Any]]] = {
    Enum: ("enum", lambda value, _: [_class_name(type(value)), value.name]),
    str: ("str", lambda value, _: str.__str__(value)),
    (bytes, bytearray, memoryview): ("bytes", lambda value, buffers: buffers.add(bytes(value))),
    PurePath: ("path", lambda value, _: str(value)),
    (set, frozenset): ("set", lambda value, buffers: [type(value).__name__, [_node(x, buffers) for x in value]]),
    Mapping: ("map", lambda value, buffers: [[_node(k, buffers), _node(v, buffers)] for k, v in value.items()]),
    BaseException: ("error", _error),
}
"""The kind of a value, and the function that writes it, by its type."""
_LIBRARY_WRITERS: dict[str, tuple[str, Callable[[Any, _Buffers], Any]]] = {
    "torch.Tensor": ("tensor", _tensor),
    "torch.Size": ("size", lambda value, _: [*value]),
    **{f"torch.{kind}": (kind, lambda value, _: _name(value)) for kind in _CONSTANTS},
    "numpy.generic": ("scalar", _array),
    "numpy.ndarray": ("array", _array),
}
"""The same for types of libraries that may not be imported in this process, by their names."""


# --- reading -------------------------------------------------------------------------------------------------------


def _value(node: Any, source: _Source) -> Any:
    """The value of a node of the JSON."""
    if type(node) in _PLAIN:
        return node
    if isinstance(node, list):
        return [_value(item, source) for item in node]
    [(kind, content)] = node.items()
    return _READERS[kind](content, source)


def _read_numbers(content: Any, source: _Source) -> list[Any]:
    code, start, size = content
    values = array(code, bytes(source.read(start, size))).tolist()
    return [*map(bool, values)] if code == "b" else values


def _read_tensor(content: Any, source: _Source) -> Tensor:
    import torch

    name, shape, start, size = content
    data = torch.frombuffer(bytearray(source.read(start, size)), dtype=torch.uint8) if size else torch.empty(0)
    return data.to(torch.uint8).view(_constant("dtype", name)).reshape(shape)


def _read_size(content: Any, _: _Source) -> torch.Size:
    import torch

    return torch.Size(content)


def _read_array(content: Any, source: _Source) -> np.ndarray:
    import numpy as np

    name, shape, start, size = content
    dtype = np.dtype(str(name))
    if dtype.kind not in _ARRAY_KINDS:
        raise TypeError(f"an array of dtype {name}")
    return np.frombuffer(source.read(start, size), dtype).reshape(shape).copy()


def _read_error(content: Any, source: _Source) -> BaseException:
    name, arguments, attributes = content
    kind = _class(name, source)
    if not issubclass(kind, BaseException):
        raise TypeError(f"{name} is no exception")
    values = _value(arguments, source)
    if kind.__module__ == "builtins":
        error = kind(*values)  # of OSError, UnicodeError and groups; it sets attributes
    else:
        error = kind.__new__(kind)
        error.args = tuple(values)
    vars(error).update(_value(attributes, source))
    return error


def _read_object(content: Any, source: _Source) -> Any:
    name, nodes = content
    kind = _class(name, source)
    names = _fields(kind)
    if names is None or not {*nodes} <= {*names}:
        raise TypeError(f"{name} does not have the fields {', '.join(nodes)}")
    values = {field: _value(node, source) for field, node in nodes.items()}
    if issubclass(kind, tuple):
        return tuple.__new__(kind, [values[field] for field in names])
    result = object.__new__(kind)
    for field, value in values.items():
        object.__setattr__(result, field, value)
    return result


def _read_set(content: Any, source: _Source) -> Any:
    name, items = content
    return {"set": set, "frozenset": frozenset}[name](_value(items, source))


_READERS: dict[str, Callable[[Any, _Source], Any]] = {
    "tuple": lambda content, source: tuple(_value(content, source)),
    "numbers": _read_numbers,
    "dict": lambda content, source: {k: v if type(v) in _PLAIN else _value(v, source) for k, v in content.items()},
    "map": lambda content, source: {_value(k, source): _value(v, source) for k, v in content},
    "set": _read_set,
    "enum": lambda content, source: _members(_class(content[0], source))[content[1]],
    "tensor": _read_tensor,
    "str": lambda content, _: str(content),
    "size": _read_size,
    **{kind: lambda content, _, kind=kind: _constant(kind, content) for kind in _CONSTANTS},
    "scalar": lambda content, source: _read_array(content, source)[()],
    "array": _read_array,
    "bytes": lambda content, source: bytes(source.read(*content)),
    "path": lambda content, _: Path(content),
    "error": _read_error,
    "object": _read_object,
}


# --- classes -------------------------------------------------------------------------------------------------------


@cache
def _fields(kind: type) -> tuple[str, ...] | None:
    """The names of the fields of a class; None if it has none."""
    if attrs.has(kind):
        return tuple(field.name for field in attrs.fields(kind))
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    names = getattr(kind, "_fields", None)
    return (*names,) if names is not None and issubclass(kind, tuple) else None


@cache
def _by_name(classes: frozenset[type]) -> dict[tuple[str, str], type]:
    return {(kind.__module__, kind.__qualname__): kind for kind in classes}


def _is_known(module: str) -> bool:
    return module.startswith("purerl.") or module in _OF_TORCH


def _class_name(kind: type) -> list[str]:
    return [kind.__module__, kind.__qualname__]


def _class(name: Any, source: _Source) -> type:
    """The class with this name. Only modules of purerl and of `_OF_TORCH` are looked up, and exceptions of Python."""
    module, path = name
    if source.classes is not None:
        return source.classes[module, path]
    if module == "builtins":
        kind = getattr(builtins, path, None)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            return kind
    elif _is_known(module):
        kind = sys.modules.get(module) or import_module(module)
        for part in path.split("."):
            kind = vars(kind)[part]
        if isinstance(kind, type) and _class_name(kind) == name:  # not one that the module has imported
            return kind
    raise TypeError(f"{module}.{path} cannot be sent in a message")


def _members(kind: type) -> Mapping[str, Any]:
    if not issubclass(kind, Enum):
        raise TypeError(f"{kind.__qualname__} is no enumeration")
    return kind.__members__


def _name(constant: object) -> str:
    return str(constant).removeprefix("torch.")


def _constant(kind: str, name: str) -> Any:
    """The dtype, layout or memory format of torch with this name."""
    import torch

    value = getattr(torch, name, None)
    if not isinstance(value, getattr(torch, kind)):
        raise TypeError(f"{name} is no {kind}")
    return value


def _no_data(value: object, got: str) -> EngineError:
    need = "data: None, booleans, numbers, strings, bytes, lists, tuples, sets, mappings, tensors and arrays"
    return EngineError("a value cannot be sent to another process", got=f"{got}: {reprlib.repr(value)}", need=need)
