"""Equality of an answer and the ground truth: numbers, lists, sets, equations, vectors, words.

Each rule returns None if it does not apply. The first rule that applies decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from purerl.rewards.answers.items import (
    as_array,
    as_items,
    base_of,
    is_collection,
    is_equation,
    is_function,
    labels_of,
    split_equation,
    stated_values,
)
from purerl.rewards.answers.linear import INEQUALITIES
from purerl.rewards.answers.nodes import Node, contains, symbols
from purerl.rewards.answers.notations import NOTATIONS
from purerl.rewards.answers.quantities import has_quantity, is_equal_quantity
from purerl.rewards.answers.real_sets import are_equal_sets, real_set, variables
from purerl.rewards.answers.rules import EXACT, Rules
from purerl.rewards.answers.scalars import are_proportional
from purerl.rewards.answers.words import is_same_word

__all__ = ["is_equal", "is_readable"]

_MAX_ITEMS = 64
_LISTS = ("list", "and", "or")
_SETS = ("union", "difference", "builder")
_STRUCTURES = (
    *(*_LISTS, *_SETS, "braces", "bracket", "matrix"),
    *("ratio", "relation", "residue", "plus_minus", "minus_plus"),
)
_NAMES = ("set", "time", "based", "text", "infinity")


def is_readable(node: Node) -> bool:
    """Whether every formula in an answer has a value."""
    if node.op in _NAMES or node == Node("neg", (Node("infinity"),)):
        return True
    return all(map(is_readable, node.children)) if contains(node, *_STRUCTURES) else has_quantity(node)


def is_equal(truth: Node, answer: Node, rules: Rules) -> bool:
    """Whether `answer` is what `truth` is. Numbers may differ as `rules` allow."""
    if truth == answer:
        return True
    results = (rule(truth, answer, rules) for rule in _RULES)
    result = next((result for result in results if result is not None), None)
    return is_equal_quantity(truth, answer, rules) if result is None else result


def _equal_equations(truth: Node, answer: Node, rules: Rules) -> bool | None:
    """An equation is equal to another one with the same solutions. x = 5 is equal to 5."""
    if is_equation(truth) and is_equation(answer):
        return _equal_two_equations(truth, answer, rules)
    if is_equation(truth):
        split = split_equation(truth)
        if answer.op in _LISTS and (split is None or split[0].op == "bracket"):
            return None
        return split is not None and is_equal(split[1], answer, rules)
    values = stated_values(answer)
    return None if values == [answer] else any(is_equal(truth, value, rules) for value in values)


def _equal_two_equations(truth: Node, answer: Node, rules: Rules) -> bool:
    """Equations that are solved for the same variable, or equations of one curve, which differ by a factor."""
    solved, given = split_equation(truth), split_equation(answer)
    if solved and given and _is_same_label(solved[0], given[0]):
        return any(is_equal(solved[1], value, rules) for value in stated_values(answer))
    is_curve = solved is None or (solved[0].op == "symbol" and bool(symbols(solved[1])))
    if not is_curve or len(truth.args) != 3 or len(answer.args) != 3 or None in (*truth.args, *answer.args):
        return False
    return are_proportional(*(Node("sub", node.args[::2]) for node in (truth, answer)), positive=False)


def _is_same_label(first: Node, second: Node) -> bool:
    """Whether two labels name the same thing: x and x_1, or y and f(x), which are both names of a function."""
    labels = first, second
    return (
        first == second
        or (base_of(first) == base_of(second) and base_of(second) in (*first.args, *second.args))
        or any(label.op == "text" for label in labels)
        or all(is_function(label) or label == Node("symbol", ("y",)) for label in labels)
    )


def _equal_inequalities(truth: Node, answer: Node, rules: Rules) -> bool | None:
    """Inequalities of several variables are equal if they differ by a positive factor."""
    expected, given = _difference(truth), _difference(answer)
    if expected is None or given is None or len(symbols(truth)) < 2:
        return None
    return expected[0] == given[0] and are_proportional(expected[1], given[1], positive=True)


def _difference(node: Node) -> tuple[str, Node] | None:
    """An inequality as the name < or <=, and the difference of which it says that it is below 0."""
    if node.op != "relation" or len(node.args) != 3 or node.args[1] not in INEQUALITIES or node.args[0] is None:
        return None
    left, name, right = node.args
    return (INEQUALITIES[name], Node("sub", (right, left))) if name[0] == ">" else (name, Node("sub", (left, right)))


def _equal_sets(truth: Node, answer: Node, rules: Rules) -> bool | None:
    """Sets of real numbers in any notation. Sets that are given by their elements are compared as lists."""
    if _has_elements(truth) and (_has_elements(answer) or contains(answer, "plus_minus")):
        return None
    truth, answer = _without_variable(truth), _without_variable(answer)
    expected = real_set(truth)
    given = real_set(Node("set", ("R",)) if answer == Node("symbol", ("R",)) else answer)
    if expected is None or (given is None and truth.op in ("bracket", "braces")):
        return None
    names = variables(truth), variables(answer)
    is_same_variable = not all(names) or names[0] == names[1]
    if given is not None and is_same_variable and are_equal_sets(expected, given):
        return True
    return None if truth.op == answer.op == "bracket" else False


def _has_elements(node: Node) -> bool:
    """Whether a set is given by its elements, or by equations such as x = 1 or x = 2."""
    return node.op == "braces" or (node.op in _LISTS and not any(map(_has_interval, node.args)))


def _has_interval(node: Node) -> bool:
    return node.op in ("bracket", "union") or (node.op == "relation" and not is_equation(node))


def _without_variable(node: Node) -> Node:
    """S instead of "x in S", and an interval instead of a < x < b with letters for its ends."""
    if node.op != "relation" or None in node.args:
        return node
    parts, names = node.args[::2], node.args[1::2]
    if names == ("in",):
        return parts[1]
    if len(parts) == 3 and {*names} <= {"<", "<="} and symbols(parts[0]) and parts[1].op == "symbol":
        brackets = ("(" if names[0] == "<" else "[") + (")" if names[1] == "<" else "]")
        return Node("bracket", (brackets, parts[0], parts[2]))
    return node


def _equal_items(truth: Node, answer: Node, rules: Rules) -> bool | None:
    """Lists and sets are equal if they have the same items in any order. A set has each item once."""
    if not (is_collection(truth) or is_collection(answer)) or _is_tuple(truth, answer):
        return None
    if _are_of_different_unknowns(truth, answer):
        return False
    items, others = as_items(truth), as_items(answer)
    count, other_count = len(labels_of(items)), len(labels_of(others))
    if count == len(items) > 1 and other_count == 0 and answer.op == "list":
        return _equal_in_order([item.args[-1] for item in items], others, rules)
    is_set_of_sets = {truth.op, answer.op} == {"set", "braces"}  # the empty set, and the set of it
    if count != other_count or max(len(items), len(others)) > _MAX_ITEMS or is_set_of_sets:
        return False
    if {truth.op, answer.op} & {"braces", "or"}:
        items, others = _distinct(items), _distinct(others)
    return _is_permutation(items, others, rules)


def _are_of_different_unknowns(truth: Node, answer: Node) -> bool:
    """Whether both are solutions of several unknowns, such as x = 1, y = 2, with different names."""
    names = [
        {base_of(label) for label in labels_of(node.args)} if node.op in _LISTS else set[str]()
        for node in (truth, answer)
    ]
    return min(map(len, names)) > 1 and names[0] != names[1]


def _is_tuple(truth: Node, answer: Node) -> bool:
    """Whether one of them is a tuple, and the other one a list of assignments that stands for a tuple."""
    has_both = as_array(truth) is not None and as_array(answer) is not None
    return has_both and (truth.op in ("bracket", "matrix")) != (answer.op in ("bracket", "matrix"))


def _distinct(items: Sequence[Node]) -> list[Node]:
    distinct: list[Node] = []
    for item in items:
        if not any(is_equal(other, item, EXACT) or is_equal(item, other, EXACT) for other in distinct):
            distinct.append(item)
    return distinct


def _is_permutation(items: Sequence[Node], others: Sequence[Node], rules: Rules) -> bool:
    if len(items) != len(others):
        return False
    remaining = [*others]
    for item in items:
        match = next((other for other in remaining if is_equal(item, other, rules)), None)
        if match is None:
            return False
        remaining.remove(match)
    return True


def _equal_in_order(items: Sequence[Node], others: Sequence[Node], rules: Rules) -> bool:
    return len(items) == len(others) and all(is_equal(a, b, rules) for a, b in zip(items, others, strict=True))


def _equal_arrays(truth: Node, answer: Node, rules: Rules) -> bool | None:
    """Tuples, vectors, matrices, and intervals with letters: the same brackets, and equal entries in the same order."""
    expected, given = (as_array(_without_variable(node)) for node in (truth, answer))
    if expected is None or given is None:
        return None if expected is given else False
    if expected.op == "bracket" == given.op and expected.args[0] != given.args[0]:
        return False
    return expected.op == given.op and _equal_in_order(expected.children, given.children, rules)


def _equal_notations(truth: Node, answer: Node, rules: Rules) -> bool | None:
    """Ratios, times, numbers in a base, remainders, words and infinity."""
    ops = {truth.op, answer.op}
    name = next((name for name in NOTATIONS if name in ops), None)
    if name is not None:
        return NOTATIONS[name](truth, answer, rules)
    if ops <= {"text", "symbol"}:
        return truth.args == answer.args or (truth.op != answer.op and is_same_word(truth.args[0], answer.args[0]))
    is_name = bool(ops & {*_NAMES}) or contains(truth, "infinity") or contains(answer, "infinity")
    return False if is_name else None


_RULES: tuple[Callable[[Node, Node, Rules], bool | None], ...] = (
    _equal_equations,
    _equal_sets,
    _equal_inequalities,
    _equal_items,
    _equal_arrays,
    _equal_notations,
)
