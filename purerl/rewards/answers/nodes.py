"""The tree of a parsed answer."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

__all__ = ["CONSTANTS", "AnswerSyntaxError", "Node", "all_nodes", "contains", "number", "symbols"]

CONSTANTS = ("pi", "e", "i")
"""Symbols that are numbers."""


class AnswerSyntaxError(ValueError):
    """The text of an answer is not notation that can be read."""


class Node(NamedTuple):
    """An operation and its operands. The operands are nodes, except for the first ones in the lists below.

    number            a Fraction
    symbol, unit, text, set            a name
    call              the name of a function, then its operands
    neg, add, sub, mul, div, pow, fact, binom, root, abs, floor, ceil        arithmetic; root: (radicand, degree)
    plus_minus        (left or None, right); minus_plus: the same with the signs exchanged
    infinity          nothing
    bracket           the brackets, such as "[)", then the items
    braces, matrix, ratio, list, and, or                the items; a matrix has rows, which are brackets "()"
    union, difference, builder            sets; builder: (symbol, condition)
    relation          operands and names of relations in turns; the first operand may be None
    residue           (value, modulus)
    time              strings: hours, minutes, "am", "pm" or ""
    based             strings: digits, base
    """

    op: str
    args: tuple[Any, ...] = ()

    @property
    def children(self) -> tuple[Node, ...]:
        """The operands that are nodes."""
        return tuple(arg for arg in self.args if isinstance(arg, Node))


def number(value: Fraction | int) -> Node:
    """The node of a rational number."""
    return Node("number", (Fraction(value),))


def all_nodes(node: Node) -> Iterator[Node]:
    """`node` and the operands of its operations, at any depth."""
    yield node
    for child in node.children:
        yield from all_nodes(child)


def contains(node: Node, *ops: str) -> bool:
    """Whether `node` or one of its operands is one of the operations `ops`."""
    return any(inner.op in ops for inner in all_nodes(node))


def symbols(node: Node) -> frozenset[str]:
    """The names of the variables in `node`.

    >>> sorted(symbols(Node("mul", (Node("symbol", ("x",)), Node("symbol", ("pi",))))))
    ['x']
    """
    return frozenset(inner.args[0] for inner in all_nodes(node) if inner.op == "symbol") - {*CONSTANTS}
