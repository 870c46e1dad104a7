"""The values of formulas: exact fractions where possible, otherwise numbers with 60 digits.

The time is bounded: a number whose size or whose exponent is too large has no value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from types import SimpleNamespace
from typing import Any

from purerl.rewards.answers.nodes import CONSTANTS, Node

__all__ = ["UndefinedError", "Value", "compare", "evaluate", "inexact", "is_close", "is_real", "real_part", "scaled"]

Value = Any
"""A Fraction, or a real or complex number of mpmath."""

_DIGITS = 60
_MAX_BITS, _MAX_EXPONENT_BITS, _MAX_DIFFERENCE_BITS, _MAX_ROOT_BITS = 20_000, 50, 120, 180
_MAX_FACTORIAL, _MAX_DEGREE = 2000, 64
_TRIGONOMETRIC = ("sin", "cos", "tan", "cot", "sec", "csc")


class UndefinedError(ArithmeticError):
    """The formula has no value: a division by zero, a number that is too large, a word."""


@cache
def _mp() -> SimpleNamespace:
    """A context of mpmath, and its functions by name."""
    from mpmath.ctx_mp import MPContext

    mp = MPContext()
    mp.dps = _DIGITS
    functions = {name: getattr(mp, name) for name in (*_TRIGONOMETRIC, "sinh", "cosh", "tanh")}
    functions |= {f"arc{name}": getattr(mp, f"a{name}") for name in _TRIGONOMETRIC}
    functions |= {"ln": mp.log, "log": mp.log10}
    return SimpleNamespace(context=mp, functions=functions, epsilon=mp.mpf(10) ** (15 - _DIGITS))


def evaluate(node: Node, variables: Mapping[str, Value]) -> Value:
    """The value of a formula. Raises UndefinedError if it has none."""
    operation = _OPERATIONS.get(node.op)
    if operation is None:
        raise UndefinedError(node.op)
    try:
        value = operation(node, variables)
    except (ArithmeticError, ValueError, TypeError, MemoryError) as error:
        raise UndefinedError(str(error)) from error
    return _bounded(value)


def _bounded(value: Value) -> Value:
    if isinstance(value, Fraction):
        bits = max(value.numerator.bit_length(), value.denominator.bit_length())
        return value if bits <= _MAX_BITS else inexact(value)
    if not _mp().context.isfinite(value):
        raise UndefinedError("not finite")
    return value


def inexact(value: Value) -> Value:
    """A value as a number of mpmath."""
    mp = _mp().context
    return mp.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else mp.convert(value)


def scaled(value: Value, factor: Fraction) -> Value:
    """A value times a fraction; exact if the value is."""
    return value * (factor if isinstance(value, Fraction) else inexact(factor))


def is_real(value: Value) -> bool:
    """Whether a value is real, up to rounding errors."""
    mp = _mp()
    return isinstance(value, Fraction) or abs(mp.context.im(value)) <= mp.epsilon * abs(value)


def is_close(first: Value, second: Value) -> bool:
    """Whether two values are equal: exactly, or up to rounding errors if one of them is not exact.

    A decimal with many digits is not equal to an irrational number that it approximates.
    """
    exact = [value for value in (first, second) if isinstance(value, Fraction)]
    if len(exact) == 2:
        return first == second
    if exact and exact[0].denominator > 10**20:
        return False
    first, second = inexact(first), inexact(second)
    scale = max(abs(first), abs(second)) if exact != [0] else 1
    return bool(abs(first - second) <= _mp().epsilon * scale)


def real_part(value: Value) -> Value:
    """The real part of a value, as a number of mpmath."""
    return _mp().context.re(inexact(value))


def compare(first: Value, second: Value) -> int:
    """-1, 0 or 1: the order of two real numbers."""
    if is_close(first, second):
        return 0
    return -1 if real_part(first) < real_part(second) else 1


def _binary(function: Callable[[Value, Value], Value]) -> Callable[[Node, Mapping[str, Value]], Value]:
    def operation(node: Node, variables: Mapping[str, Value]) -> Value:
        first, second = (evaluate(child, variables) for child in node.args)
        if not (isinstance(first, Fraction) and isinstance(second, Fraction)):
            first, second = inexact(first), inexact(second)
        return function(first, second)

    return operation


def _unary(function: Callable[[Value], Value]) -> Callable[[Node, Mapping[str, Value]], Value]:
    return lambda node, variables: function(evaluate(node.args[0], variables))


def _symbol(node: Node, variables: Mapping[str, Value]) -> Value:
    name = node.args[0]
    if name in CONSTANTS:
        mp = _mp().context
        return {"pi": +mp.pi, "e": +mp.e, "i": mp.mpc(0, 1)}[name]
    if name not in variables:
        raise UndefinedError(name)
    return variables[name]


def _unit(node: Node, variables: Mapping[str, Value]) -> Value:
    match node.args[0]:
        case "degree":
            return _mp().context.pi / 180
        case "percent":
            return Fraction(1, 100)
    raise UndefinedError("a unit")


def _add(first: Value, second: Value) -> Value:
    """A sum. It has no value if the smaller term would be lost in the digits of the larger one."""
    if not isinstance(first, Fraction) and first != 0 and second != 0:
        mp = _mp().context
        if abs(mp.mag(first) - mp.mag(second)) > _MAX_DIFFERENCE_BITS:
            raise UndefinedError("a sum of numbers of different size")
    return first + second


def _divide(first: Value, second: Value) -> Value:
    if second == 0:
        raise UndefinedError("a division by zero")
    return first / second


def _power(base: Value, exponent: Value) -> Value:
    """A power. An odd root of a negative number is real."""
    if isinstance(base, Fraction) and isinstance(exponent, Fraction):
        return _rational_power(base, exponent)
    return _inexact_power(inexact(base), inexact(exponent))


def _rational_power(base: Fraction, exponent: Fraction) -> Value:
    if base == 0:
        if exponent <= 0:
            raise UndefinedError("a power of zero")
        return base
    if exponent.denominator > 1:
        if base < 0 and exponent.denominator % 2:
            sign = -1 if exponent.numerator % 2 else 1
            return sign * _rational_power(-base, exponent)
        root = _exact_root(base, exponent.denominator)
        if root is None:
            return _inexact_power(inexact(base), inexact(exponent))
        base, exponent = root, Fraction(exponent.numerator)
    if abs(base) == 1:
        return base ** (exponent.numerator % 2)
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(exponent) * bits > _MAX_BITS:
        return _inexact_power(inexact(base), inexact(exponent))
    return base**exponent.numerator


def _exact_root(base: Fraction, degree: int) -> Fraction | None:
    """The root of a fraction, if it is a fraction."""
    if base < 0 or degree > _MAX_DEGREE:
        return None
    numerator, denominator = _integer_root(base.numerator, degree), _integer_root(base.denominator, degree)
    return None if numerator is None or denominator is None else Fraction(numerator, denominator)


def _integer_root(value: int, degree: int) -> int | None:
    mp = _mp().context
    if value.bit_length() > _MAX_ROOT_BITS:
        return None  # the root would be rounded
    root = int(mp.nint(mp.root(value, degree)))
    return root if root**degree == value else None


def _inexact_power(base: Value, exponent: Value) -> Value:
    mp = _mp().context
    if base == 0 or mp.mag(exponent) > _MAX_EXPONENT_BITS:
        raise UndefinedError("an exponent that is too large")
    if mp.mag(exponent) + math.log2(2 + abs(mp.mag(base))) > _MAX_EXPONENT_BITS:
        raise UndefinedError("a power that is too large")
    return mp.power(base, exponent)


def _root(radicand: Value, degree: Value) -> Value:
    if isinstance(degree, Fraction) and degree != 0:
        if isinstance(radicand, Fraction):
            return _rational_power(radicand, 1 / degree)
        if is_real(radicand) and radicand < 0 and degree.denominator == 1 and degree.numerator % 2:
            return -_inexact_power(-radicand, inexact(1 / degree))
    return _inexact_power(inexact(radicand), 1 / inexact(degree))


def _call(node: Node, variables: Mapping[str, Value]) -> Value:
    name, *operands = node.args
    mp = _mp()
    argument, *bases = (inexact(evaluate(operand, variables)) for operand in operands)
    if mp.context.mag(argument) > _MAX_EXPONENT_BITS and name not in ("ln", "log"):
        raise UndefinedError("an argument that is too large")
    return mp.context.log(argument) / mp.context.log(bases[0]) if bases else mp.functions[name](argument)


def _factorial(value: Value) -> Value:
    mp = _mp().context
    if isinstance(value, Fraction) and value.denominator == 1 and 0 <= value <= _MAX_FACTORIAL:
        return Fraction(math.factorial(value.numerator))
    if mp.mag(inexact(value)) > _MAX_EXPONENT_BITS:
        raise UndefinedError("a factorial that is too large")
    return mp.gamma(inexact(value) + 1)


def _binomial(n: Value, k: Value) -> Value:
    is_integer = all(isinstance(value, Fraction) and value.denominator == 1 for value in (n, k))
    if is_integer and 0 <= k <= n <= _MAX_FACTORIAL:
        return Fraction(math.comb(n.numerator, k.numerator))
    return _factorial(n) / (inexact(_factorial(k)) * inexact(_factorial(n - k)))


def _floor(value: Value) -> Value:
    return Fraction(math.floor(value) if isinstance(value, Fraction) else int(_mp().context.floor(value)))


_OPERATIONS: dict[str, Callable[[Node, Mapping[str, Value]], Value]] = {
    "number": lambda node, _: node.args[0],
    "symbol": _symbol,
    "unit": _unit,
    "call": _call,
    "neg": _unary(lambda value: -value),
    "abs": _unary(abs),
    "floor": _unary(_floor),
    "ceil": _unary(lambda value: -_floor(-value)),
    "fact": _unary(_factorial),
    "add": _binary(_add),
    "sub": _binary(lambda first, second: _add(first, -second)),
    "mul": _binary(lambda first, second: first * second),
    "div": _binary(_divide),
    "pow": _binary(_power),
    "root": _binary(_root),
    "binom": _binary(_binomial),
}
