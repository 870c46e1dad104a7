"""Times, ratios, remainders, and numbers in a base: how they are read and compared."""

from __future__ import annotations

import re
from collections.abc import Callable

from purerl.rewards.answers.nodes import Node, number
from purerl.rewards.answers.quantities import is_equal_quantity
from purerl.rewards.answers.rules import Rules
from purerl.rewards.answers.scalars import is_equal_value, is_same_value
from purerl.rewards.answers.words import plain_words

__all__ = ["NOTATIONS", "read_notation"]

_TIME = re.compile(r"(\d{1,2}):([0-5]\d)(?:\s*([ap])\.?\s?m\.?)?", re.IGNORECASE)
_BASED = re.compile(
    r"""(?P<sign>-?)\s*\(?(?P<digits>[0-9A-Z]+)\)?\s*
    (?: _\s*(?:\{\s*)?\(?(?:base\s*)? | ,?\s*\(?\s*(?:in\s+)?base[\s-]*) (?P<base>\d+|[a-z]+) \)?\s*\}?\)?""",
    re.VERBOSE,
)
_MAX_BASE_FIGURES = 2
_NAMES = "two three four five six seven eight nine ten eleven twelve"
_BASES = {name: str(base) for base, name in enumerate(_NAMES.split(), start=2)} | {"sixteen": "16"}


def read_notation(text: str) -> Node | None:
    r"""The node of a time such as 3:30 p.m., or of a number with a base such as ``101_2``; None of other answers.

    >>> read_notation("03:30"), read_notation(r"101_{\text{two}}")
    (Node(op='time', args=('3', '30', '')), Node(op='based', args=('101', '2')))
    """
    text = plain_words(text)
    if match := _TIME.fullmatch(text):
        return Node("time", (match[1].lstrip("0"), match[2], (match[3] or "").lower()))
    match = _BASED.fullmatch(text)
    base = _BASES.get(match["base"], match["base"]) if match else ""
    if match is None or not base.isdecimal() or not re.search(r"\d", match["digits"]):
        return None
    return Node("based", (match["sign"] + (match["digits"].lstrip("0") or "0"), base.lstrip("0")))


def _equal_times(truth: Node, answer: Node, rules: Rules) -> bool:
    """The same hours and minutes. One of them may leave out a.m. or p.m."""
    if truth.op == "ratio":
        return _equal_ratios(truth, Node("ratio", tuple(number(int(part or 0)) for part in answer.args[:2])), rules)
    if truth.op != answer.op:
        return False
    halves = {node.args[2] for node in (truth, answer)} - {""}
    return truth.args[:2] == answer.args[:2] and len(halves) < 2


def _equal_ratios(truth: Node, answer: Node, rules: Rules) -> bool:
    """Ratios with a common factor are equal; a ratio of two numbers is their quotient."""
    if truth.op == answer.op:
        (a, b), *others = zip(truth.args, answer.args, strict=False)
        is_same = all(is_same_value(Node("mul", (a, d)), Node("mul", (b, c)), rules) for c, d in others)
        return len(truth.args) == len(answer.args) and is_same
    ratio, other = (truth, answer) if truth.op == "ratio" else (answer, truth)
    is_fraction = len(ratio.args) == 2 and other.op in ("div", "number", "neg")
    return is_fraction and is_equal_value(Node("div", ratio.args), other, rules)


def _equal_residues(truth: Node, answer: Node, rules: Rules) -> bool:
    """Remainders of the same division. Without the divisor, the number must be the same."""
    if truth.op == answer.op:
        (first, modulus), (second, other) = truth.args, answer.args
        quotient = Node("div", (Node("sub", (first, second)), modulus))
        return is_same_value(modulus, other) and is_same_value(Node("floor", (quotient,)), quotient)
    first, second = (node.args[0] if node.op == "residue" else node for node in (truth, answer))
    return is_equal_quantity(first, second, rules)


def _equal_based(truth: Node, answer: Node, rules: Rules) -> bool:
    """The same digits. The base may be left out or added, if it has these digits."""
    based, other = (truth, answer) if truth.op == "based" else (answer, truth)
    digits, base = based.args
    figures = digits.lstrip("-")
    has_figures = figures.isdecimal() and len(base) <= _MAX_BASE_FIGURES and max(map(int, figures)) < int(base or 0)
    return has_figures and is_same_value(other, number(int(digits)))


NOTATIONS: dict[str, Callable[[Node, Node, Rules], bool]] = {
    "time": _equal_times,
    "ratio": _equal_ratios,
    "residue": _equal_residues,
    "based": _equal_based,
}
"""Comparisons of notations, by the operation of the node, in the order in which they are tried."""
