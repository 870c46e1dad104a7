"""Messages between processes: values arrive as they were, and bytes of a stranger are refused and execute nothing."""

from __future__ import annotations

import dataclasses
import math
import os
import struct
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from purerl.envs.protocol import Observation, ToolCall
from purerl.errors import ConfigError, EngineError
from purerl.protocols import Sampling
from purerl.rewards.adapters import RewardInput
from purerl.rewards.outcomes import Failure, Logged
from purerl.system.messages import decode, encode


def _same(left: Any, right: Any) -> bool:
    """Whether two values are equal, with the same types, and with the same sign of zeros."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right) or (math.isnan(left) and math.isnan(right))
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, dict):
        return _same([*left], [*right]) and _same([*left.values()], [*right.values()])
    return left == right


TEXTS = st.text(st.characters(), max_size=8)  # with lone surrogates
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.binary(max_size=20)
LONG = st.lists(st.integers(), min_size=16, max_size=20) | st.lists(st.floats(), min_size=16, max_size=20)
BOOLEANS = st.lists(st.booleans(), min_size=16, max_size=20)
KEYS = st.none() | st.booleans() | st.integers() | TEXTS | st.tuples(st.integers(), TEXTS)
VALUES = st.recursive(
    LEAVES | LONG | BOOLEANS | LONG.map(tuple),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(TEXTS, inner, max_size=4)
        | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_values_arrive_with_their_types(value: Any) -> None:
    assert _same(decode(encode(value)), value)


@given(st.sets(st.integers() | TEXTS) | st.frozensets(st.integers() | TEXTS))
def test_sets_arrive_with_their_types(value: Any) -> None:
    received = decode(encode(value))
    assert received == value
    assert type(received) is type(value)


DTYPES = [torch.bfloat16, torch.float16, torch.float64, torch.uint8, torch.int64, torch.bool, torch.complex64]


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 3), (1, 1, 4)])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float8_e4m3fn], ids=str)
def test_tensors_arrive_bit_by_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randint(0, 2, shape).to(dtype)
    received = decode(encode({"t": [tensor]}))["t"][0]
    assert (received.dtype, received.shape) == (dtype, tensor.shape)
    assert encode(received) == encode(tensor)
    assert received.float().tolist() == tensor.float().tolist() if not dtype.is_complex else True


def test_tensors_of_any_layout_arrive() -> None:
    matrix = torch.arange(6.0).reshape(2, 3)
    values = [matrix.T, matrix[:, 1], matrix.expand(4, 2, 3), torch.nn.Parameter(matrix), matrix[0].requires_grad_()]
    for value in values:
        received = decode(encode(value))
        assert torch.equal(received, value)
        assert not received.requires_grad
        received[...] = 0.0  # it can be written to


ARRAYS = [
    np.zeros((0, 3)),
    np.array(-0.0),
    np.array([np.nan, np.inf]),
    np.arange(6).reshape(2, 3).T,
    np.array(["a", "bc"]),
]


@pytest.mark.parametrize(
    "array", [*ARRAYS, np.array(b"x"), np.array(["2026-01-01"], "M8[ns]"), np.array([True])], ids=repr
)
def test_arrays_and_their_numbers_arrive(array: np.ndarray) -> None:
    received = decode(encode(array))
    assert (received.dtype, received.shape, received.tobytes()) == (array.dtype, array.shape, array.tobytes())
    for number in array.reshape(-1):
        assert type(decode(encode(number))) is type(number)


class _Text(str):
    """A string of another class."""

    __slots__ = ()


def test_what_is_like_a_type_of_python_arrives_as_this_type() -> None:
    for value, plain in ((_Text("a"), "a"), (bytearray(b"a"), b"a"), (memoryview(b"a"), b"a")):
        assert decode(encode(value)) == plain
        assert type(decode(encode(value))) is type(plain)


OBJECTS = [
    RewardInput("0", "text", {"answer": 1}, tokens=[*range(20)]),
    Observation(messages=({"role": "user", "content": "\ud800"},), reward={1: -0.0}, images=(b"\0",)),
    ToolCall("add", {"a": [1, None]}),
    Logged(Failure("f", "raised", "text", "environment"), metrics={"a": (1.0, 2)}),
    Sampling(),
    Path("a/b"),
    torch.Size([2, 3]),
    torch.bfloat16,
]


@pytest.mark.parametrize("value", OBJECTS, ids=lambda value: type(value).__name__)
def test_objects_arrive_with_all_of_their_fields(value: Any) -> None:
    received = decode(encode([value]))[0]
    assert received == value
    assert type(received) is type(value)


ERRORS = [
    ConfigError("a setting", got="1", need="2", do="3"),
    FileNotFoundError(2, "no such file", "name"),
    KeyError("a"),
    ValueError(),
    KeyboardInterrupt(),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_exceptions_arrive(error: BaseException) -> None:
    received = decode(encode(error))
    assert type(received) is type(error)
    assert (str(received), received.args) == (str(error), error.args)


class _OwnError(Exception):
    """An exception that is neither of Python nor of purerl."""


def test_other_exceptions_arrive_as_errors_with_their_text() -> None:
    unsendable = ValueError(object())
    for error, text in ((_OwnError("broken"), "_OwnError: broken"), (unsendable, "ValueError: <object object at ")):
        received = decode(encode(error))
        assert type(received) is EngineError
        assert text in str(received)


# --- what cannot be sent -------------------------------------------------------------------------------------------


@attrs.frozen
class _Attrs:
    field: int = 0


@dataclasses.dataclass
class _Dataclass:
    field: int = 0


class _Tuple(NamedTuple):
    field: int = 0


class _Color(Enum):
    RED = 1


_LOOP: list[Any] = []
_LOOP.append(_LOOP)
UNSENDABLE = {
    "function": (len, "builtin_function_or_method"),
    "lambda": (lambda: None, "an object of type builtins.function"),
    "class": (int, "an object of type builtins.type"),
    "module": (os, "an object of type builtins.module"),
    "object": (object(), "an object of type builtins.object"),
    "attrs class of a user": (_Attrs(), "_Attrs"),
    "dataclass of a user": (_Dataclass(), "_Dataclass"),
    "named tuple of a user": (_Tuple(), "_Tuple"),
    "array of objects": (np.array([object()]), "an array of dtype object"),
    "structured array": (np.zeros(1, [("a", "i4")]), "an array of dtype"),
    "itself": (_LOOP, "contains itself"),
    "a huge number": (10**5000, "4300"),
}


@pytest.mark.parametrize("name", UNSENDABLE)
def test_what_is_no_data_is_refused_with_its_type(name: str) -> None:
    value, text = UNSENDABLE[name]
    for container in (value, [value], {"a": (value,)}, {1: value}, Observation(state=value)):
        with pytest.raises(EngineError, match="a value cannot be sent to another process") as error:
            encode(container)
        assert text in str(error.value)
        assert "need: data: None, booleans" in str(error.value)


def test_member_of_an_enumeration_of_a_user_is_refused_by_the_receiver() -> None:
    with pytest.raises(EngineError, match="cannot be sent in a message"):
        decode(encode(_Color.RED))
