"""Values as bytes and back, without pickles: reading bytes of a stranger executes no code.

A message is JSON, and after it the bytes of tensors, arrays and long lists of numbers:

    8 bytes   length of the JSON, little-endian
    JSON      None, booleans, numbers, strings and lists as they are; of another value an object with one key, its kind
    buffers   to which the JSON refers by position and size

What can be sent is data: beside the above tuples, sets, mappings, bytes, paths, dtypes, tensors (they arrive on the
CPU), arrays and numbers of numpy, members of enumerations, exceptions, and objects of the classes of purerl, and of
those of torch that describe a checkpoint, if they are attrs classes, dataclasses or named tuples. Their fields are set
as they were: no method of the class is called.
"""

from __future__ import annotations

import builtins
import dataclasses
import json
import sys
from array import array
from collections.abc import Callable, Mapping
from enum import Enum
from importlib import import_module
from pathlib import Path, PurePath
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from purerl.errors import EngineError

__all__ = ["decode", "encode"]

_LENGTH = 8  # bytes of the length of the JSON
_LONG = 16  # lists of at least so many numbers are buffers
_NUMBERS = {int: "q", float: "d", bool: "b"}
_PLAIN = (type(None), bool, int, float, str)
_OF_TORCH = tuple(f"torch.distributed.checkpoint.{name}" for name in ("metadata", "planner", "storage", "filesystem"))
_INT64 = range(-(2**63), 2**63)


def encode(value: Any) -> bytes:
    """`value` as bytes, for `decode`.

    Raises: EngineError if it contains something that is not data.

    >>> decode(encode({"loss": (0.5, None), 3: [1] * 20})) == {"loss": (0.5, None), 3: [1] * 20}
    True
    """
    buffers = _Buffers()
    try:
        text = json.dumps(_node(value, buffers), separators=(",", ":")).encode()
    except RecursionError:
        raise _no_data(type(value), "a value that contains itself, or is nested too deeply") from None
    return b"".join((len(text).to_bytes(_LENGTH, "little"), text, *buffers.parts))


def decode(message: bytes) -> Any:
    """The value that `encode` has made `message` of. Raises: EngineError if it is not such a message."""
    view = memoryview(message)
    end = _LENGTH + int.from_bytes(view[:_LENGTH], "little")
    try:
        return _value(json.loads(bytes(view[_LENGTH:end])), view[end:])
    except EngineError:
        raise
    except Exception as error:  # what other bytes raise depends on them
        got = f"{len(message)} bytes that cannot be read: {type(error).__name__}: {error}"
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
        return {"dict": {key: _node(item, buffers) for key, item in value.items()}}
    for type_, (name, write) in _WRITERS.items():
        if isinstance(value, type_):
            return {name: write(value, buffers)}
    return {"object": _object(value, buffers)}


def _numbers(values: list[Any] | tuple[Any, ...], buffers: _Buffers) -> list[Any] | None:
    """The buffer of long `values` that are numbers of one type; otherwise None."""
    types = set(map(type, values)) if len(values) >= _LONG else set()
    code = _NUMBERS.get(types.pop()) if len(types) == 1 else None
    if code is None or (code == "q" and not (min(values) in _INT64 and max(values) in _INT64)):
        return None
    return [code, *buffers.add(array(code, values).tobytes())]


def _tensor(value: Tensor, buffers: _Buffers) -> Any:
    flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return [_name(value.dtype), [*value.shape], *buffers.add(flat.numpy().tobytes())]


def _array(value: np.ndarray | np.generic, buffers: _Buffers) -> Any:
    if value.dtype.hasobject or value.dtype.names is not None:
        raise _no_data(value, f"an array of dtype {value.dtype}")
    return [value.dtype.str, [*value.shape], *buffers.add(value.tobytes())]


def _error(error: BaseException, buffers: _Buffers) -> Any:
    """An exception of Python or purerl with its attributes; another one is an EngineError with its text."""
    name = type(error).__qualname__
    if type(error) is not getattr(builtins, name, None) and not type(error).__module__.startswith("purerl."):
        error = EngineError(f"{name}: {error}")
    try:
        state = [_node([*error.args], buffers), _node(dict(vars(error)), buffers)]
    except EngineError:
        error = EngineError(f"{name}: {error}")
        state = [[*error.args], {"dict": {}}]
    return [_class_name(error), *state]


def _object(value: Any, buffers: _Buffers) -> Any:
    """An object of a class with fields that purerl or torch defines."""
    kind = type(value)
    names = _fields(kind)
    if names is None or not _is_known(kind.__module__):
        raise _no_data(value, f"an object of type {kind.__module__}.{kind.__qualname__}")
    fields = {name: _node(getattr(value, name), buffers) for name in names if hasattr(value, name)}
    return [_class_name(value), fields]


_WRITERS: dict[type | tuple[type, ...], tuple[str, Callable[[Any, _Buffers], Any]]] = {
    Enum: ("enum", lambda value, _: [_class_name(value), value.name]),
    Tensor: ("tensor", _tensor),
    torch.Size: ("size", lambda value, _: [*value]),
    torch.dtype: ("dtype", lambda value, _: _name(value)),
    np.generic: ("scalar", _array),
    np.ndarray: ("array", _array),
    (bytes, bytearray, memoryview): ("bytes", lambda value, buffers: buffers.add(bytes(value))),
    PurePath: ("path", lambda value, _: str(value)),
    (set, frozenset): ("set", lambda value, buffers: [type(value).__name__, [_node(x, buffers) for x in value]]),
    Mapping: ("map", lambda value, buffers: [[_node(k, buffers), _node(v, buffers)] for k, v in value.items()]),
    BaseException: ("error", _error),
}
"""The kind of a value, and the function that writes it, by its type."""


# --- reading -------------------------------------------------------------------------------------------------------


def _value(node: Any, buffers: memoryview) -> Any:
    """The value of a node of the JSON."""
    if isinstance(node, list):
        return [_value(item, buffers) for item in node]
    if not isinstance(node, dict):
        return node
    [(kind, content)] = node.items()
    return _READERS[kind](content, buffers)


def _read(buffers: memoryview, start: int, size: int) -> memoryview:
    if not (0 <= start and 0 <= size and start + size <= len(buffers)):
        raise ValueError(f"no buffer of {size} bytes at {start}")
    return buffers[start : start + size]


def _read_numbers(content: Any, buffers: memoryview) -> list[Any]:
    code, start, size = content
    values = array(code, bytes(_read(buffers, start, size))).tolist()
    return [*map(bool, values)] if code == "b" else values


def _read_tensor(content: Any, buffers: memoryview) -> Tensor:
    name, shape, start, size = content
    data = torch.frombuffer(bytearray(_read(buffers, start, size)), dtype=torch.uint8) if size else torch.empty(0)
    return data.to(torch.uint8).view(_dtype(name)).reshape(shape)


def _read_array(content: Any, buffers: memoryview) -> np.ndarray:
    name, shape, start, size = content
    return np.frombuffer(_read(buffers, start, size), np.dtype(name)).reshape(shape).copy()


def _read_error(content: Any, buffers: memoryview) -> BaseException:
    name, arguments, attributes = content
    kind = _class(name)
    if not issubclass(kind, BaseException):
        raise TypeError(f"{name} is no exception")
    values = _value(arguments, buffers)
    error = kind.__new__(kind, *values)  # OSError takes its number from them
    error.args = tuple(values)
    vars(error).update(_value(attributes, buffers))
    return error


def _read_object(content: Any, buffers: memoryview) -> Any:
    name, nodes = content
    kind = _class(name)
    names = _fields(kind)
    if names is None or not set(nodes) <= {*names}:
        raise TypeError(f"{name} does not have the fields {', '.join(nodes)}")
    values = {field: _value(node, buffers) for field, node in nodes.items()}
    if issubclass(kind, tuple):
        return tuple.__new__(kind, [values[field] for field in names])
    result = object.__new__(kind)
    for field, value in values.items():
        object.__setattr__(result, field, value)
    return result


def _read_set(content: Any, buffers: memoryview) -> Any:
    name, items = content
    return {"set": set, "frozenset": frozenset}[name](_value(items, buffers))


_READERS: dict[str, Callable[[Any, memoryview], Any]] = {
    "tuple": lambda content, buffers: tuple(_value(content, buffers)),
    "numbers": _read_numbers,
    "dict": lambda content, buffers: {key: _value(item, buffers) for key, item in content.items()},
    "map": lambda content, buffers: {_value(k, buffers): _value(v, buffers) for k, v in content},
    "set": _read_set,
    "enum": lambda content, _: _members(_class(content[0]))[content[1]],
    "tensor": _read_tensor,
    "size": lambda content, _: torch.Size(content),
    "dtype": lambda content, _: _dtype(content),
    "scalar": lambda content, buffers: _read_array(content, buffers)[()],
    "array": _read_array,
    "bytes": lambda content, buffers: bytes(_read(buffers, *content)),
    "path": lambda content, _: Path(content),
    "error": _read_error,
    "object": _read_object,
}


# --- classes -------------------------------------------------------------------------------------------------------


def _fields(kind: type) -> list[str] | None:
    """The names of the fields of a class; None if it has none."""
    if attrs.has(kind):
        return [field.name for field in attrs.fields(kind)]
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    names = getattr(kind, "_fields", None)
    return [*names] if names is not None and issubclass(kind, tuple) else None


def _is_known(module: str) -> bool:
    return module.startswith("purerl.") or module in _OF_TORCH


def _class_name(value: object) -> list[str]:
    return [type(value).__module__, type(value).__qualname__]


def _class(name: Any) -> type:
    """The class with this name. Only modules of purerl and of `_OF_TORCH` are looked up, and exceptions of Python."""
    module, path = name
    if module == "builtins":
        kind = getattr(builtins, path, None)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            return kind
    elif _is_known(module):
        kind = sys.modules.get(module) or import_module(module)
        for part in path.split("."):
            kind = vars(kind)[part]
        if isinstance(kind, type):
            return kind
    raise TypeError(f"{module}.{path} cannot be sent in a message")


def _members(kind: type) -> Mapping[str, Any]:
    if not issubclass(kind, Enum):
        raise TypeError(f"{kind.__qualname__} is no enumeration")
    return kind.__members__


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{name} is no dtype")
    return dtype


def _no_data(value: object, got: str) -> EngineError:
    need = "data: None, booleans, numbers, strings, bytes, lists, tuples, sets, mappings, tensors and arrays"
    return EngineError("a value cannot be sent to another process", got=f"{got}: {value!r:.100}", need=need)
