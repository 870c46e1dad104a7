"""Linear inequalities in one variable, solved for it."""

from __future__ import annotations

from fractions import Fraction

from purerl.rewards.answers.nodes import Node, symbols
from purerl.rewards.answers.values import UndefinedError, Value, evaluate, inexact, is_real, real_part

__all__ = ["INEQUALITIES", "solve_linear"]

INEQUALITIES = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""The names of inequalities, and the same ones read from right to left."""


def solve_linear(left: Node, name: str, right: Node) -> tuple[str, Value] | None:
    """The relation between the variable and a number that ``left name right`` is: -2x + 1 < 7 is x > -3.

    `name` is that of an inequality, or "!=". None if this is not linear in one variable, or has no bound.

    >>> from purerl.rewards.answers.parser import parse
    >>> solve_linear(*parse("-2x + 1 < 7").args)
    ('>', Fraction(-3, 1))
    """
    names = symbols(left) | symbols(right)
    difference = Node("sub", (left, right))
    if len(names) != 1 or name not in (*INEQUALITIES, "!=") or _degree(difference) != 1:
        return None
    try:
        at_0, at_1 = (evaluate(difference, {next(iter(names)): Fraction(value)}) for value in (0, 1))
    except UndefinedError:
        return None
    if not (isinstance(at_0, Fraction) and isinstance(at_1, Fraction)):
        at_0, at_1 = inexact(at_0), inexact(at_1)
    slope = at_1 - at_0
    if slope == 0 or not (is_real(at_0) and is_real(at_1)):
        return None
    return (name if real_part(slope) > 0 else INEQUALITIES.get(name, name)), -at_0 / slope


def _degree(node: Node) -> int | None:
    """The degree of a polynomial in the variables of `node`; None if it is none, or is not written as one."""
    if not symbols(node):
        return 0
    degrees = [_degree(child) for child in node.children]
    known = [degree for degree in degrees if degree is not None]
    if len(known) < len(degrees):
        return None
    match node.op, known:
        case "symbol", _:
            degree = 1
        case (("neg" | "add" | "sub"), _):
            degree = max(known)
        case "mul", _:
            degree = sum(known)
        case "div", (degree, 0):
            pass
        case _:
            degree = None
    return degree
