"""Sets of real numbers: intervals, unions, conditions on one variable.

A set is a sorted tuple of intervals that do not touch each other. A number is a closed interval of length 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cmp_to_key, reduce
from itertools import chain
from typing import NamedTuple

from purerl.rewards.answers.items import as_items, is_function
from purerl.rewards.answers.linear import INEQUALITIES, solve_linear
from purerl.rewards.answers.nodes import Node, all_nodes, contains, symbols
from purerl.rewards.answers.values import UndefinedError, Value, compare, evaluate, is_close, is_real

__all__ = ["RealSet", "are_equal_sets", "real_set", "variables"]


class Interval(NamedTuple):
    """An interval. An end without a bound is None and open."""

    low: Value | None
    high: Value | None
    brackets: str

    @property
    def has_low(self) -> bool:
        """Whether the lower end is in the interval."""
        return self.brackets[0] == "["

    @property
    def has_high(self) -> bool:
        """Whether the upper end is in the interval."""
        return self.brackets[1] == "]"


RealSet = tuple[Interval, ...]

_EVERYTHING: RealSet = (Interval(None, None, "()"),)


def _point(value: Value) -> Interval:
    return Interval(value, value, "[]")


def are_equal_sets(first: RealSet, second: RealSet) -> bool:
    """Whether two sets have the same numbers."""
    return len(first) == len(second) and all(
        a.brackets == b.brackets and _is_same(a.low, b.low) and _is_same(a.high, b.high)
        for a, b in zip(first, second, strict=True)
    )


def _is_same(first: Value | None, second: Value | None) -> bool:
    return first is second if first is None or second is None else is_close(first, second)


def _union(*sets: Iterable[Interval]) -> RealSet:
    merged: list[Interval] = []
    for interval in sorted((interval for each in sets for interval in each), key=cmp_to_key(_compare_low)):
        if merged and _touches(merged[-1], interval):
            merged[-1] = _join(merged[-1], interval)
        else:
            merged.append(interval)
    return tuple(merged)


def _compare_low(first: Interval, second: Interval) -> int:
    if first.low is None or second.low is None:
        return (second.low is None) - (first.low is None)
    return compare(first.low, second.low) or second.has_low - first.has_low


def _compare_high(first: Interval, second: Interval) -> int:
    if first.high is None or second.high is None:
        return (first.high is None) - (second.high is None)
    return compare(first.high, second.high) or first.has_high - second.has_high


def _touches(first: Interval, second: Interval) -> bool:
    """Whether the union of two intervals, of which `second` does not start earlier, is one interval."""
    if first.high is None or second.low is None:
        return True
    order = compare(second.low, first.high)
    return order < 0 or (order == 0 and (first.has_high or second.has_low))


def _join(first: Interval, second: Interval) -> Interval:
    end = max(first, second, key=cmp_to_key(_compare_high))
    return Interval(first.low, end.high, first.brackets[0] + end.brackets[1])


def _complement(intervals: RealSet) -> RealSet:
    """The gaps between the intervals, and what is below and above them."""
    lows = [(None, "("), *((interval.high, "(" if interval.has_high else "[") for interval in intervals)]
    highs = [*((interval.low, ")" if interval.has_low else "]") for interval in intervals), (None, ")")]
    has_low = not intervals or intervals[0].low is not None
    has_high = not intervals or intervals[-1].high is not None
    gaps = [Interval(low, high, a + b) for (low, a), (high, b) in zip(lows, highs, strict=True)]
    return tuple(filter(_is_not_empty, gaps[0 if has_low else 1 : None if has_high else -1]))


def _is_not_empty(interval: Interval) -> bool:
    if interval.low is None or interval.high is None:
        return True
    order = compare(interval.low, interval.high)
    return order < 0 or (order == 0 and interval.brackets == "[]")


def _intersection(first: RealSet, second: RealSet) -> RealSet:
    return _complement(_union(_complement(first), _complement(second)))


def _difference(first: RealSet, second: RealSet) -> RealSet:
    return _intersection(first, _complement(second))


def real_set(node: Node) -> RealSet | None:
    r"""The set of real numbers that `node` is, or None if it is none. Its conditions are about at most one variable.

    >>> from purerl.rewards.answers.parser import parse
    >>> are_equal_sets(real_set(parse("x < 1 or x > 1")), real_set(parse(r"\mathbb{R} \setminus \{1\}")))
    True
    """
    return _real_set(node) if len(variables(node)) <= 1 else None


def variables(node: Node) -> frozenset[Node]:
    """The variables of the conditions of a set: symbols, or f(x)."""
    parts = [
        part for inner in all_nodes(node) if inner.op == "relation" for part in inner.args[::2] if part is not None
    ]
    return frozenset(chain.from_iterable(map(_variables_of, parts)))


def _variables_of(part: Node) -> list[Node]:
    return [part] if is_function(part) else [Node("symbol", (name,)) for name in symbols(part)]


def _is_variable(node: Node | None) -> bool:
    return node is None or (node.op == "symbol" and bool(symbols(node))) or is_function(node)


def _real_set(node: Node) -> RealSet | None:
    read = _READERS.get(node.op)
    return read(node) if read else None


def _combined(nodes: Sequence[Node], operation: Callable[[RealSet, RealSet], RealSet]) -> RealSet | None:
    sets = [each for node in nodes if (each := _real_set(node)) is not None]
    return reduce(operation, sets) if len(sets) == len(nodes) else None


def _read_conditions(node: Node) -> RealSet | None:
    conditions: list[Node] = []
    for item in node.args:
        conditions.append(_repeated(conditions[-1], item) if conditions else item)
    known = {*INEQUALITIES, "!=", "in"}
    are_conditions = all(condition.op == "relation" and {*condition.args[1::2]} <= known for condition in conditions)
    return _combined(conditions, _intersection) if are_conditions else None


def _repeated(condition: Node, item: Node) -> Node:
    """The condition x != 2 for the second item of x != 1, 2; any other item as it is."""
    is_value = item.op != "relation" and condition.op == "relation" and condition.args[1:2] == ("!=",)
    return Node("relation", (condition.args[0], "!=", item)) if is_value else item


def _read_cases(node: Node) -> RealSet | None:
    """Inequalities that exclude each other, such as x < 1, x > 2: one of them holds."""
    return _combined(node.args, _union) if _read_conditions(node) == () else None


def _read_elements(node: Node) -> RealSet | None:
    values = [value for element in node.args if (value := _real(element)) is not None]
    return _union(map(_point, values)) if len(values) == len(node.args) else None


def _real(node: Node) -> Value | None:
    try:
        value = evaluate(node, {})
    except UndefinedError:
        return None
    return value if is_real(value) else None


def _read_interval(node: Node) -> RealSet | None:
    """An interval with constant ends; None if it would be empty, because a pair of numbers is meant then."""
    brackets, *ends = node.args
    if len(ends) != 2:
        return None
    low, high = map(_real, ends)
    has_low, has_high = low is not None or _is_infinity(ends[0], -1), high is not None or _is_infinity(ends[1], 1)
    is_bounded = (low is not None or brackets[0] == "(") and (high is not None or brackets[1] == ")")
    interval = Interval(low, high, brackets)
    return (interval,) if has_low and has_high and is_bounded and _is_not_empty(interval) else None


def _is_infinity(node: Node, sign: int) -> bool:
    return node == (Node("infinity") if sign > 0 else Node("neg", (Node("infinity"),)))


def _read_relation(node: Node) -> RealSet | None:
    """The numbers for which a relation holds between one variable and constants, such as 1 < x <= 2 or 2x < 4."""
    parts, names = node.args[::2], node.args[1::2]
    if names == ("in",):
        return _real_set(parts[1]) if _is_variable(parts[0]) else None
    if len(parts) > 3 or (len(parts) == 3 and not symbols(parts[1])):
        return None
    return _all_hold([_half_line(*relation) for relation in zip(parts, names, parts[1:], strict=False)])


def _all_hold(sets: Sequence[RealSet | None]) -> RealSet | None:
    """The numbers in all sets; None if one of them is unknown."""
    known = [each for each in sets if each is not None]
    return reduce(_intersection, known) if len(known) == len(sets) else None


def _half_line(left: Node | None, name: str, right: Node) -> RealSet | None:
    """The numbers for which an inequality holds that is solved for its variable, or can be because it is linear."""
    if name == "!=" and contains(right, "plus_minus"):
        return _all_hold([_half_line(left, name, value) for value in as_items(right)])
    if _is_variable(left):
        found = _bounded_by(name, right)
    else:
        found = _bounded_by(INEQUALITIES.get(name, name), left) if left and _is_variable(right) else None
    if found is not None or left is None:
        return found
    solved = solve_linear(left, name, right)
    return None if solved is None else _numbers_at(*solved)


def _bounded_by(name: str, bound: Node) -> RealSet | None:
    if _is_infinity(bound, 1) or _is_infinity(bound, -1):
        return _EVERYTHING if name.startswith("<" if _is_infinity(bound, 1) else ">") else None
    value = _real(bound)
    return None if value is None else _numbers_at(name, value)


def _numbers_at(name: str, value: Value) -> RealSet | None:
    """The numbers with the relation `name` to `value`."""
    half_lines = {
        "=": (_point(value),),
        "!=": _complement((_point(value),)),
        "<": (Interval(None, value, "()"),),
        "<=": (Interval(None, value, "(]"),),
        ">": (Interval(value, None, "()"),),
        ">=": (Interval(value, None, "[)"),),
    }
    return half_lines.get(name)


_READERS: dict[str, Callable[[Node], RealSet | None]] = {
    "set": lambda node: {"R": _EVERYTHING, "empty": ()}.get(node.args[0]),
    "bracket": _read_interval,
    "braces": _read_elements,
    "relation": _read_relation,
    "builder": lambda node: _real_set(node.args[1]),
    "union": lambda node: _combined(node.args, _union),
    "difference": lambda node: _combined(node.args, _difference),
    "sub": lambda node: _combined(node.args, _difference),
    "or": lambda node: _combined(node.args, _union),
    "and": _read_conditions,
    "list": lambda node: _read_conditions(node) or _read_cases(node),
}
