"""Values as plain data: what crosses, what becomes of it, and what is refused."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter, OrderedDict, defaultdict, deque
from enum import Enum, IntEnum
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purerl.rewards.code.inside.values import MAX_ITERATED, NotPlainError, decode, encode


class Point(NamedTuple):
    x: int
    y: list[int]


class Color(str, Enum):  # noqa: UP042 -- whose str() is another text
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Loud(list):
    def __iter__(self):
        return iter(["other"])

    def __len__(self):
        return 99


def _sent(value: Any) -> Any:
    """`value` on the other side."""
    return decode(encode([value])[0])[0][0]


_SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.complex_numbers(allow_nan=False) | st.fractions() | st.decimals(allow_nan=False)
)  # fmt: skip
_KEYS = st.recursive(_SCALARS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4)
_VALUES = st.recursive(
    _KEYS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(_KEYS, inner, max_size=4)
        | st.sets(_KEYS, max_size=4)
        | st.lists(inner, max_size=3).map(deque)
        | st.binary().map(bytearray)
    ),
    max_leaves=20,
)


@given(_VALUES)
def test_plain_data_arrives_unchanged(value: Any) -> None:
    assert _sent(value) == value
    assert repr(_sent(value)) == repr(value) or isinstance(value, (set, frozenset, dict, list, tuple, deque))


def test_types_of_numbers_arrive_unchanged() -> None:
    value = [True, 1, 1.0, -0.0, 2**63, -(10**5000), math.inf, range(9, 1, -2), "\udc80"]
    sent = _sent(value)
    assert [type(part) for part in sent] == [type(part) for part in value]
    assert sent == value
    assert math.copysign(1, sent[3]) == -1
    assert math.isnan(_sent(math.nan))


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Level.LOW, 1),
        (Color.RED, "red"),
        (Point(1, [2]), (1, [2])),
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(a=1), {"a": 1}),
        (defaultdict(list, a=[1]), {"a": [1]}),
        (Loud([1]), [1]),
        ({1: 2}.values(), [2]),
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
    ],
)
def test_objects_of_subclasses_become_plain(value: Any, plain: Any) -> None:
    sent = _sent(value)
    assert sent == plain
    assert type(sent) is type(plain)


@pytest.mark.parametrize("value", [object(), len, int, np.zeros(2), memoryview(b""), {"a": [object()]}, Ellipsis])
def test_other_objects_are_refused(value: Any) -> None:
    with pytest.raises(NotPlainError, match="is no plain data"):
        encode([value])


def test_iterators_become_generators_of_a_limited_length() -> None:
    assert list(_sent(x * x for x in range(3))) == [0, 1, 4]
    assert next(_sent(map(str, [5]))) == "5"
    endless = _sent(itertools.count())
    assert list(itertools.islice(endless, MAX_ITERATED)) == list(range(MAX_ITERATED))
    with pytest.raises(NotPlainError, match="more than 1000 items"):
        next(endless)
    with pytest.raises(ZeroDivisionError):
        encode([(1 // x for x in (1, 0))])


def test_an_object_in_several_places_is_one_object() -> None:
    shared: list[Any] = [1]
    cycle: list[Any] = [shared]
    cycle.append(cycle)
    first, second, again = _sent((shared, {"a": shared}, cycle))
    assert second["a"] is first
    assert again[0] is first
    assert again[1] is again


def test_the_depth_has_no_limit() -> None:
    value: Any = ()
    for _ in range(10**4):
        value = [(value,)]
    sent, depth = _sent(value), 0
    while sent != ():
        ((sent,),), depth = sent, depth + 1
    assert depth == 10**4


# --- arguments by reference --------------------------------------------------------------------------------------


def test_changed_arguments_are_changed_on_the_other_side() -> None:
    inner, table, numbers, raw = [1], {"a": 1}, {1}, bytearray(b"x")
    arguments = [[3, 1, inner], table, numbers, raw, deque([1]), (inner,)]
    text, graph = encode([arguments])
    (theirs,), their_graph = decode(text)
    theirs[0].sort(key=str)
    theirs[0][2].append(2)
    theirs[1].update(b=theirs[0])
    theirs[2].clear()
    theirs[3] += b"y"
    theirs[4].appendleft(0)
    (result,), _ = decode(encode([theirs[5][0]], their_graph)[0], graph)
    assert arguments == [[1, 3, [1, 2]], {"a": 1, "b": arguments[0]}, set(), b"xy", deque([0, 1]), ([1, 2],)]
    assert result is inner
    assert (arguments[1], arguments[2], arguments[3]) == (table, numbers, raw)


def test_only_changes_are_sent_back() -> None:
    text, _ = encode([[list(range(1000)), {3, 1, 2}, frozenset([5, 4])], 0])
    (theirs, _), graph = decode(text)
    answer, _ = encode([7], graph)
    assert answer == "[[7], [null, null, null, null]]"
    theirs[0][0] = 0.0
    assert json.loads(encode([7], graph)[0])[1][1] == ["list", [0.0, *range(1, 1000)]], (
        "0.0 equals 0, and is another type"
    )


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "[]", "[[[5]], []]", "[[[0]], [null]]", '[[[0]], [["list", [[7]]]]]', '[[[-1]], [["list", []]]]',
        '[[[true]], [["list", []], ["list", []]]]', '[[["eval", "1"]], []]', '[[["int", "x"]], []]', '[[{"a": 1}], []]',
        '[[[0]], [["set", [[1]]], ["list", []]]]', '[[[0]], [["tuple", [[1]]], ["tuple", [[0]]]]]', "[[NaN], []]",
        '[[[0]], [["dict", [1]]]]', '[[[0]], [["object", []]]]', '[[["Decimal", "x"]], []]', "[[[" * 10**5,
        '[[["range", [1, 2, 0]]], []]', '[[["bytes", "\u2026"]], []]', "[[" + "1" * 5000 + "], []]",
    ],
)  # fmt: skip
def test_every_other_text_is_refused(text: str) -> None:
    with pytest.raises(NotPlainError):
        decode(text)


@pytest.mark.parametrize("node", ['["dict", []]', '["tuple", []]', '["generator", []]', '["list", [[9]]]'])
def test_an_answer_cannot_change_the_type_of_an_argument(node: str) -> None:
    argument = [1]
    _, graph = encode([argument])
    with pytest.raises(NotPlainError):
        decode(f"[[0], [{node}]]", graph)
    assert argument == [1]
