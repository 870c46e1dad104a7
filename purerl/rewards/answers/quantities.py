"""Equality of quantities: formulas with units of measurement, percentages, angles, and things that are counted."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from purerl.rewards.answers.function_words import names_unit
from purerl.rewards.answers.nodes import Node, contains, number, symbols
from purerl.rewards.answers.rules import Rules
from purerl.rewards.answers.scalars import has_value, is_equal_value, value_of
from purerl.rewards.answers.units import DIMENSIONS, NO_UNIT, Unit, is_unit, parse_unit
from purerl.rewards.answers.values import is_real, real_part

__all__ = ["has_quantity", "is_compound", "is_equal_quantity"]

_MAX_EXPONENT = 10
_ONE = number(1)


class Quantity(NamedTuple):
    """A formula times a unit. The unit is None if none is written."""

    number: Node
    unit: Unit | None


def has_quantity(node: Node) -> bool:
    """Whether a formula, with or without units, has a value; with variables, at some points."""
    quantity = _quantity(node)
    return quantity is not None and has_value(quantity.number)


def is_compound(first: Node, second: Node) -> bool:
    """Whether two quantities are parts of one, such as 2 hours and 30 minutes."""
    quantities = [quantity for quantity in map(_quantity, (first, second)) if quantity and quantity.unit]
    scale = _conversion(quantities[0].unit, quantities[1].unit) if len(quantities) == 2 else None
    return scale is not None and scale < 1


def is_equal_quantity(truth: Node, answer: Node, rules: Rules) -> bool:
    """Whether two quantities are equal. If only one of them has a unit, their numbers are compared.

    A percentage or an angle in degrees is also equal to the number that it is. A letter in plain text, such as in 5 m,
    is a variable, unless the other quantity has a unit of the same dimensions.
    """
    expected, given = _quantity(truth), _quantity(answer)
    if expected is None or given is None:
        return False
    expected, given = _with_letters(expected, given.unit), _with_letters(given, expected.unit)
    if expected.unit is None or given.unit is None:
        unit = expected.unit or given.unit
        is_number = unit is not None and unit.dimensions in _NUMBERS and is_equal_value(truth, answer, rules)
        return is_number or (_may_omit(unit, expected.number) and is_equal_value(expected.number, given.number, rules))
    scale = _conversion(expected.unit, given.unit)
    if scale is not None:
        return is_equal_value(expected.number, given.number, rules, scale)
    are_angles = all(quantity.unit.dimensions in _ANGLES for quantity in (expected, given))
    return are_angles and is_equal_value(_radians(truth, expected), _radians(answer, given), rules)


_ANGLES = ({"degree": 1}, {"radian": 1})
_NUMBERS = ({"percent": 1}, *_ANGLES)


def _radians(node: Node, quantity: Quantity) -> Node:
    """An angle as a number; `evaluate` converts degrees."""
    return quantity.number if quantity.unit.dimensions == {"radian": 1} else node


def _with_letters(quantity: Quantity, unit: Unit | None) -> Quantity:
    """A quantity without a unit with its letters as units, if these have the dimensions of `unit`."""
    if unit is None or quantity.unit is not None:
        return quantity
    read = _quantity(_letters_as_units(quantity.number))
    if read is None or read.unit is None or not read.unit.dimensions:
        return quantity
    return quantity if _conversion(unit, read.unit) is None else read


def _letters_as_units(node: Node) -> Node:
    if node.op == "symbol" and is_unit(node.args[0]):
        return Node("unit", node.args)
    return Node(node.op, tuple(_letters_as_units(each) if isinstance(each, Node) else each for each in node.args))


def _may_omit(unit: Unit | None, truth: Node) -> bool:
    """Whether a number without the unit may be meant with it: 50 for 50%, but not 0.5 for 0.5%."""
    dimensions, value = unit.dimensions if unit else {}, value_of(truth)
    if "percent" in dimensions:
        return dimensions == {"percent": 1} and value is not None and is_real(value) and real_part(value) > 1
    return "degree" not in dimensions or isinstance(value, Fraction) or bool(symbols(truth))


def _conversion(expected: Unit, given: Unit) -> Fraction | None:
    """The factor from `given` to `expected`; None if they measure different things. 3 balls are 3 red balls."""
    units = [{name: n for name, n in unit.dimensions.items() if name in DIMENSIONS} for unit in (expected, given)]
    words = [unit.dimensions.keys() - DIMENSIONS for unit in (expected, given)]
    is_same = units[0] == units[1] and (words[0] <= words[1] or words[1] <= words[0])
    return given.size / expected.size if is_same else None


def _quantity(node: Node) -> Quantity | None:
    if not contains(node, "text", "unit"):
        return Quantity(node, None)
    read = _READERS.get(node.op)
    if read:
        return read(node)
    return None if contains(node, "text") else Quantity(node, None)


def _read_negative(node: Node) -> Quantity | None:
    quantity = _quantity(node.args[0])
    return quantity and quantity._replace(number=Node("neg", (quantity.number,)))


def _read_power(node: Node) -> Quantity | None:
    quantity, exponent = _quantity(node.args[0]), value_of(node.args[1])
    is_integer = isinstance(exponent, Fraction) and exponent.denominator == 1 and abs(exponent) < _MAX_EXPONENT
    if quantity is None or quantity.unit is None or quantity.number != _ONE or not is_integer:
        return None
    return Quantity(_ONE, quantity.unit**exponent.numerator)


def _read_product(node: Node) -> Quantity | None:
    first, second = map(_quantity, node.args)
    if first is None or second is None:
        return None
    unit = (first.unit or NO_UNIT) * (second.unit or NO_UNIT) ** (1 if node.op == "mul" else -1)
    if second.number == _ONE and second.unit is not None:
        return Quantity(first.number, unit)
    is_word_before_number = first.number == _ONE and first.unit is not None and node.op == "mul"
    return None if is_word_before_number else Quantity(Node(node.op, (first.number, second.number)), unit)


def _read_sum(node: Node) -> Quantity | None:
    """A sum of quantities of the same dimension, such as 2 hours 30 minutes."""
    quantities = [quantity for quantity in map(_quantity, node.args) if quantity and quantity.unit]
    values = [value for quantity in quantities if isinstance(value := value_of(quantity.number), Fraction)]
    if len(values) < 2 or _conversion(quantities[0].unit, quantities[1].unit) is None:
        return None
    total = sum((value * quantity.unit.size for value, quantity in zip(values, quantities, strict=True)), Fraction(0))
    return Quantity(number(total), quantities[0].unit._replace(size=Fraction(1)))


_READERS = {
    "text": lambda node: Quantity(_ONE, parse_unit(node.args[0])) if names_unit(node.args[0]) else None,
    "unit": lambda node: Quantity(_ONE, parse_unit(node.args[0])),
    "neg": _read_negative,
    "pow": _read_power,
    "mul": _read_product,
    "div": _read_product,
    "add": _read_sum,
}
