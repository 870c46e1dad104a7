"""The items of lists, equations, tuples and matrices, whatever their notation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import chain, product

from purerl.rewards.answers.nodes import Node, contains, number, symbols
from purerl.rewards.answers.scalars import is_same_value, value_of
from purerl.rewards.answers.values import is_real, real_part

__all__ = [
    "as_array",
    "as_items",
    "base_of",
    "is_collection",
    "is_equation",
    "is_function",
    "labels_of",
    "split_equation",
    "stated_values",
]

_MAX_VARIANTS, _ROUNDING = 16, 0.005
_LISTS, _SIGNS = ("list", "and", "or"), ("plus_minus", "minus_plus")


def is_equation(node: Node) -> bool:
    """Whether a node is ``a = b``, or ``a = b = c``, and so on."""
    return node.op == "relation" and {*node.args[1::2]} == {"="}


def is_label(node: Node | None) -> bool:
    """Whether the left side of an equation only names its right side: x, f(x), (x, y), |AB|, a : b, Area."""
    match node:
        case Node("symbol" | "text"):
            return node.op == "text" or bool(symbols(node))
        case Node("bracket" | "ratio" | "div" | "abs" | "call", args):
            return all(isinstance(arg, str) or is_label(arg) for arg in args)
        case Node("mul", (name, argument)):
            return is_function(node) or (is_label(name) and argument.op in ("number", "bracket"))
    return False


def is_function(node: Node) -> bool:
    """Whether a node is f(x), or the inverse of f."""
    if node.op != "mul":
        return False
    name, argument = node.args
    name = name.args[0] if name.op == "pow" else name
    return name.op == argument.op == "symbol" and bool(symbols(name))


def split_equation(node: Node) -> tuple[Node, Node] | None:
    """The label and the value of an equation that is solved, such as x = 5 or 2x + 1 = y; None of another one."""
    if not is_equation(node):
        return None
    left, right = node.args[0], node.args[-1]
    if is_label(left):
        return left, right
    return (right, left) if left and right.op == "symbol" and is_label(right) else None


def stated_values(node: Node) -> list[Node]:
    r"""The values that an answer states, without labels: one, or an exact one and its decimals.

    Empty if the answer contradicts itself.

    >>> from purerl.rewards.answers.parser import parse
    >>> [len(stated_values(parse(text))) for text in ("x = 5", r"\frac13 \approx 0.333", "1 = 2")]
    [1, 2, 0]
    """
    parts, names = [*node.args[::2]], [*node.args[1::2]]
    if node.op != "relation" or not {*names} <= {"=", "~", "in"}:
        return [node]
    if "in" in names:
        return [parts[1]] if names == ["in"] and is_label(parts[0]) else []
    end = names.index("~") + 1 if "~" in names else len(parts)
    exact, decimals = parts[:end], parts[end:]
    if decimals and len(exact) == 1 and (exact[0] is None or is_label(exact[0])):
        return decimals if len(decimals) == 1 else []
    values = _chain_values(exact)
    is_consistent = all(is_same_value(values[-1], value) for value in values[:-1])
    is_rounded = all(_is_rounded(value, decimal) for value in values[-1:] for decimal in decimals)
    return [*values[-1:], *decimals] if is_consistent and is_rounded else []


def _chain_values(parts: Sequence[Node | None]) -> list[Node]:
    """The values in a chain of equations, without the left side that names them; none for 2x = 10 or p = 0."""
    if len(parts) == 2 and not is_label(parts[0]) and is_label(parts[1]):
        parts = parts[::-1]
    has_name = len(parts) > 1 and parts[0] is not None and (symbols(parts[0]) or contains(parts[0], "text"))
    values = [part for part in (parts[1:] if has_name else parts) if part is not None]
    is_unsolved = has_name and not is_label(parts[0]) and (values == [number(0)] or len(symbols(parts[0])) == 1)
    return [] if is_unsolved else values


def _is_rounded(exact: Node, decimal: Node) -> bool:
    values = value_of(exact), value_of(decimal)
    if None in values or not all(map(is_real, values)) or all(map(_is_integer, values)):
        return False
    first, second = map(real_part, values)
    return bool(abs(first - second) <= _ROUNDING * max(1, abs(first)))


def _is_integer(value: object) -> bool:
    return isinstance(value, Fraction) and value.denominator == 1


def is_collection(node: Node) -> bool:
    """Whether an answer consists of several values in no order."""
    return node.op in (*_LISTS, "braces") or contains(node, *_SIGNS)


def as_items(node: Node) -> list[Node]:
    r"""The values of an answer, for which the order does not matter. ``\pm`` stands for two values.

    >>> from purerl.rewards.answers.parser import parse
    >>> as_items(parse("x = 5, x = -5")) == as_items(parse("x = 5, -5")) == as_items(parse(r"\pm 5"))
    True
    """
    items = _components(node) or _grouped(_flatten(node))
    labels = labels_of(items)
    if labels and len({*map(base_of, labels)}) == 1:
        items = [split[1] if (split := split_equation(item)) else item for item in items]
    return [*chain.from_iterable(map(_variants, items))]


def labels_of(items: Sequence[Node]) -> list[Node]:
    """The labels of those items that are equations such as x = 5."""
    return [split[0] for item in items if (split := split_equation(item))]


def _flatten(node: Node) -> list[Node]:
    if node.op in _LISTS:
        return [*chain.from_iterable(map(_flatten, node.args))]
    return [*node.args] if node.op == "braces" else [node]


def _components(node: Node) -> list[Node]:
    """The equations x = 1 and y = 2 of the equation (x, y) = (1, 2)."""
    split = split_equation(node)
    if split is None or not (split[0].op == split[1].op == "bracket") or len(split[0].args) != len(split[1].args):
        return []
    return [Node("relation", (a, "=", b)) for a, b in zip(split[0].args[1:], split[1].args[1:], strict=True)]


def base_of(label: Node) -> str:
    """The name of a variable without its index: x for x_1."""
    return re.sub(r"_[\d,]+$", "", label.args[0]) if label.op == "symbol" else repr(label)


def _variants(node: Node) -> Iterator[Node]:
    r"""All choices of the signs of ``\pm``. With ``\mp`` in the same item, the signs depend on each other."""
    count = _count_signs(node)
    if count == 0:
        yield node
    elif contains(node, "minus_plus"):
        yield from (_with_signs(node, iter([sign] * count)) for sign in (1, -1))
    elif 2**count <= _MAX_VARIANTS:
        yield from (_with_signs(node, iter(signs)) for signs in product((1, -1), repeat=count))


def _count_signs(node: Node) -> int:
    return (node.op in _SIGNS) + sum(map(_count_signs, node.children))


def _with_signs(node: Node, signs: Iterator[int]) -> Node:
    sign = next(signs) if node.op in _SIGNS else 0
    args = tuple(_with_signs(arg, signs) if isinstance(arg, Node) else arg for arg in node.args)
    if not sign:
        return Node(node.op, args)
    is_plus = (sign > 0) == (node.op == "plus_minus")
    if args[0] is None:
        return args[1] if is_plus else Node("neg", args[1:])
    return Node("add" if is_plus else "sub", args)


def as_array(node: Node) -> Node | None:
    """A tuple or a matrix as a node "bracket" or "matrix"; None if the answer is neither.

    A column is a tuple. A factor is multiplied with each entry. The name of a point is left out.
    """
    match node:
        case Node("matrix" | "bracket"):
            return _as_matrix(node)
        case Node("mul", (Node("symbol"), Node("bracket", ("()", *_)) as point)):
            return point
        case Node("mul" | "div" | "neg"):
            return _scaled(node)
        case Node("list" | "and", items):
            return _assigned(items)
    return None


def _as_matrix(node: Node) -> Node:
    """A column as a tuple, and a list of lists as a matrix."""
    if node.op == "matrix":
        is_column = all(len(row.args) == 2 for row in node.args)
        return Node("bracket", ("()", *(row.args[1] for row in node.args))) if is_column else node
    brackets, *rows = node.args
    if brackets == "[]" and all(row.op == "bracket" and row.args[0] == "[]" for row in rows):
        return Node("matrix", tuple(Node("bracket", ("()", *row.args[1:])) for row in rows))
    return node


def _scaled(node: Node) -> Node | None:
    arrays = [as_array(child) for child in node.children]
    found = [array for array in arrays if array]
    if len(found) != 1 or (node.op == "div" and arrays[1]):
        return None

    def scale(entry: Node) -> Node:
        args = tuple(entry if array else child for child, array in zip(node.children, arrays, strict=True))
        value = value_of(Node(node.op, args))
        return number(value) if isinstance(value, Fraction) else Node(node.op, args)

    return _map_entries(found[0], scale)


def _map_entries(array: Node, function: Callable[[Node], Node]) -> Node:
    if array.op == "matrix":
        return Node("matrix", tuple(_map_entries(row, function) for row in array.args))
    return Node("bracket", (array.args[0], *map(function, array.args[1:])))


def _assigned(items: Sequence[Node]) -> Node | None:
    """The tuple (1, 2) for x = 1, y = 2 in any order: the names of variables are in alphabetical order."""
    values = _values_by_name(items)
    return None if values is None else Node("bracket", ("()", *(values[name] for name in sorted(values))))


def _values_by_name(items: Sequence[Node]) -> dict[str, Node] | None:
    """The values of equations for different variables; None if they are something else."""
    splits = [split for item in items if (split := split_equation(item)) and split[0].op == "symbol"]
    values = {label.args[0]: value for label, value in splits}
    return values if len(values) == len(items) else None


def _grouped(items: Sequence[Node]) -> list[Node]:
    """The equations (x, y) = (1, 2) and (x, y) = (3, 4) for x = 1, y = 2, x = 3, y = 4."""
    names = {label.args[0] for label in labels_of(items) if label.op == "symbol"}
    size = len(names)
    if size < 2 or len(items) <= size or len(items) % size:
        return [*items]
    groups = [_values_by_name(items[k : k + size]) for k in range(0, len(items), size)]
    if any(group is None or group.keys() != names for group in groups):
        return [*items]
    label = Node("bracket", ("()", *(Node("symbol", (name,)) for name in sorted(names))))
    tuples = [Node("bracket", ("()", *(group[name] for name in sorted(group)))) for group in groups if group]
    return [Node("relation", (label, "=", each)) for each in tuples]
