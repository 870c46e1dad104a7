"""Equality of formulas without units.

Two formulas are equal if they have the same value, and with variables if they have the same value for several values of
the variables. A number must also be evaluated: 1 + 1 is not accepted for 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from random import Random

from purerl.rewards.answers.nodes import CONSTANTS, Node, all_nodes, contains, symbols
from purerl.rewards.answers.rules import EXACT, Rules
from purerl.rewards.answers.values import UndefinedError, Value, evaluate, inexact, is_close, is_real, real_part, scaled

__all__ = ["are_proportional", "has_value", "is_equal_value", "is_same_value", "value_of"]

_RANGES = ((1, 3), (0, 1), (-3, 3), (-3, 3), (-3, 0), (3, 8))
"""The ranges of the variables at the points where formulas are compared."""
_MIN_POINTS = 2


def value_of(node: Node, variables: Mapping[str, Value] | None = None) -> Value | None:
    """The value of a formula, or None if it has none."""
    try:
        return evaluate(node, variables or {})
    except UndefinedError:
        return None


def has_value(node: Node) -> bool:
    """Whether a formula has a value; with variables, at some points."""
    names = symbols(node)
    return len(_compared(_values(node, names))) >= _MIN_POINTS if names else value_of(node) is not None


def is_equal_value(truth: Node, answer: Node, rules: Rules, scale: Fraction = Fraction(1)) -> bool:
    """Whether ``truth = scale * answer`` holds, and `answer` is evaluated as far as `truth` if `rules` demand it."""
    is_evaluated = not rules.evaluated or _is_evaluated(truth, answer)
    return is_evaluated and is_same_value(truth, answer, rules, scale)


def is_same_value(truth: Node, answer: Node, rules: Rules = EXACT, scale: Fraction = Fraction(1)) -> bool:
    """Whether ``truth = scale * answer`` holds."""
    names = symbols(truth) | symbols(answer)
    if not names:
        expected, value = value_of(truth), value_of(answer)
        return expected is not None and value is not None and _is_within(expected, scaled(value, scale), rules)
    pairs = _pairs(truth, answer, names)
    return len(pairs) >= _MIN_POINTS and all(b is not None and is_close(a, scaled(b, scale)) for a, b in pairs)


def _is_within(expected: Value, value: Value, rules: Rules) -> bool:
    if is_close(expected, value):
        return True
    if not (rules.relative_tolerance or rules.absolute_tolerance) or not (is_real(expected) and is_real(value)):
        return False
    expected, value = real_part(expected), real_part(value)
    return bool(abs(value - expected) <= rules.tolerance(expected))


def are_proportional(truth: Node, answer: Node, *, positive: bool) -> bool:
    """Whether two formulas with variables differ only by a constant factor, which is not 0, or is positive."""
    pairs = _pairs(truth, answer, symbols(truth) | symbols(answer))
    if len(pairs) < _MIN_POINTS or any(not a or not b for a, b in pairs):
        return False
    (first, second), *others = ((inexact(a), inexact(b)) for a, b in pairs)
    has_sign = not positive or (is_real(first / second) and real_part(first / second) > 0)
    return has_sign and all(is_close(first * b, a * second) for a, b in others)


def _pairs(truth: Node, answer: Node, names: frozenset[str]) -> list[tuple[Value, Value]]:
    """The values of both formulas at the points where they are compared. The second one is None if it is undefined."""
    expected, values = _values(truth, names), _values(answer, names)
    return [(expected[point], values[point]) for point in _compared(expected)]


@lru_cache(maxsize=256)
def _values(node: Node, names: frozenset[str]) -> Sequence[Value | None]:
    """The values of a formula at all points; None where it has no value."""
    return [value_of(node, {name: _sample(name, point) for name in names}) for point in range(len(_RANGES))]


@lru_cache(maxsize=4096)
def _sample(name: str, point: int) -> Fraction:
    """The value of the variable `name` at a point: a fraction, which depends only on the arguments."""
    low, high = _RANGES[point]
    return Fraction(Random(f"{name}/{point}").randrange(1, 9973), 9973) * (high - low) + low


def _compared(values: Sequence[Value | None]) -> list[int]:
    """The points at which formulas are compared: those where the ground truth is real, if there are enough."""
    defined = [point for point, value in enumerate(values) if value is not None]
    real = [point for point in defined if is_real(values[point])]
    return real if len(real) >= _MIN_POINTS else defined


_UNDONE = ("add", "sub", "call", "abs", "floor", "ceil")
_SYMBOLIC = ("pow", "root", "fact", "binom", "symbol", "unit")


def _is_evaluated(truth: Node, answer: Node) -> bool:
    r"""Whether no operation in `answer` remains to be done, if the ground truth is a number without such operations.

    Powers, factorials and binomial coefficients are numbers, and roots are if the ground truth has roots or constants.
    At most one factor is an integer or a decimal: 3 \cdot 2^{10} is a number, and 3 \cdot 5 is not.
    """
    is_imaginary = Node("symbol", ("i",)) in all_nodes(truth)
    if symbols(truth) or contains(truth, *_UNDONE) or is_imaginary:
        return True
    has_roots = contains(truth, "root", "symbol", "pow")
    return all(_is_done(node, has_roots=has_roots) for node in all_nodes(answer))


def _is_done(node: Node, *, has_roots: bool) -> bool:
    match node.op:
        case "mul":
            return sum(not contains(factor, *_SYMBOLIC) for factor in _factors(node)) <= 1
        case "symbol":
            return node.args[0] in CONSTANTS
        case "root":
            return has_roots and not contains(node, "mul")
        case "pow":
            exponent = value_of(node.args[1])
            return has_roots or (isinstance(exponent, Fraction) and exponent.denominator == 1)
    return node.op not in _UNDONE


def _factors(node: Node) -> Iterator[Node]:
    if node.op == "mul":
        yield from _factors(node.args[0])
        yield from _factors(node.args[1])
    else:
        yield node
