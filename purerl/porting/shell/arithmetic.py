"""Integer arithmetic of the shell, as in ``$((a * 2 + b))``."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

__all__ = ["evaluate"]

_BINARY: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.Pow: operator.pow,
    ast.Div: lambda a, b: int(a / b) if abs(a) < 2**53 else a // b,
    ast.Mod: lambda a, b: a - b * int(a / b),
}
_COMPARISONS: dict[type[ast.AST], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_LARGEST = 10_000


def evaluate(expression: str, lookup: Callable[[str], str]) -> int:
    """The value of `expression`; `lookup` returns the text of a variable, which may be an expression itself.

    Raises: ValueError for what is not integer arithmetic, or needs a variable that `lookup` does not know.

    >>> evaluate("(n + 1) * 7 / 2", {"n": "2"}.__getitem__)
    10
    """
    condition = re.fullmatch(r"(.*?)\?(.*):(.*)", expression, re.DOTALL)
    if condition:
        return evaluate(condition[2] if evaluate(condition[1], lookup) else condition[3], lookup)
    text = re.sub(r"!(?!=)", " not ", expression.replace("&&", " and ").replace("||", " or ")).strip()
    try:
        return int(_value(ast.parse(text or "0", mode="eval").body, lookup))
    except (SyntaxError, KeyError, ZeroDivisionError, RecursionError, OverflowError) as error:
        raise ValueError(expression) from error


def _value(node: ast.AST, lookup: Callable[[str], str]) -> int:
    match node:
        case ast.Constant(value=int() as number):
            return number
        case ast.Name(id=name):
            return evaluate(lookup(name), lookup)
        case ast.UnaryOp(op=op, operand=operand):
            value = _value(operand, lookup)
            return int(not value) if isinstance(op, ast.Not) else -value if isinstance(op, ast.USub) else value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _binary(op, _value(left, lookup), _value(right, lookup))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            return int(_COMPARISONS[type(op)](_value(left, lookup), _value(right, lookup)))
        case ast.BoolOp(op=op, values=values):
            results: list[Any] = [bool(_value(each, lookup)) for each in values]
            return int(all(results) if isinstance(op, ast.And) else any(results))
    raise ValueError(ast.unparse(node))


def _binary(op: ast.AST, left: int, right: int) -> int:
    if isinstance(op, ast.Pow | ast.LShift) and not 0 <= right <= _LARGEST:
        raise ValueError(f"exponent {right}")
    return _BINARY[type(op)](left, right)
