"""Units of measurement: their names, their dimensions and their sizes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

__all__ = ["DIMENSIONS", "NO_UNIT", "Unit", "is_unit", "parse_unit"]


class Unit(NamedTuple):
    """A product of powers of units.

    size       in the basic units of its dimensions
    dimensions exponents, by the name of a dimension; an unknown word is a dimension of its own
    """

    size: Fraction
    dimensions: Mapping[str, int]

    def __mul__(self, other: object) -> Unit:
        if not isinstance(other, Unit):
            return NotImplemented
        dimensions = Counter(self.dimensions)
        for name, power in other.dimensions.items():
            dimensions[name] += power
        return Unit(self.size * other.size, {name: power for name, power in dimensions.items() if power})

    def __pow__(self, power: int) -> Unit:
        return Unit(self.size**power, {name: power * exponent for name, exponent in self.dimensions.items() if power})


NO_UNIT = Unit(Fraction(1), {})

_TABLE = """
length: m meter metre =1; cm centimeter centimetre =1/100; mm millimeter millimetre =1/1000
length: km kilometer kilometre =1000; nm nanometer =1/1000000000
length: in inch inches =127/5000; ft foot feet =381/1250; yd yard =1143/1250; mi mile =201168/125
mass: kg kilogram =1; g gram =1/1000; mg milligram =1/1000000; ton tonne =1000
mass: lb lbs pound =45359237/100000000; oz ounce =45359237/1600000000
time: s sec second =1; min minute =60; h hr hrs hour =3600; day =86400; week =604800
time: ms millisecond =1/1000; month =2629800; year yr yrs =31557600
money: dollar usd buck =1; cent penny pennies =1/100; nickel =1/20; dime =1/10; quarter =1/4
volume: l liter litre =1; ml milliliter millilitre =1/1000
percent: percent pct percentage =1
degree: degree deg =1
radian: radian rad =1
force: n newton =1
energy: j joule =1; kj kilojoule =1000
power: w watt =1; kw kilowatt =1000
frequency: hz hertz =1
"""
_ENTRIES = [
    (dimension, names.split(), Fraction(size))
    for dimension, _, entries in (line.partition(": ") for line in _TABLE.strip().splitlines())
    for names, _, size in (entry.partition("=") for entry in entries.split(";"))
]
_UNITS = {name: Unit(size, {dimension: 1}) for dimension, names, size in _ENTRIES for name in names}
_UNITS |= {"mph": _UNITS["mi"] * _UNITS["h"] ** -1, "kph": _UNITS["km"] * _UNITS["h"] ** -1}

DIMENSIONS = frozenset(dimension for dimension, _, _ in _ENTRIES)
"""The names of what units measure."""


def is_unit(word: str) -> bool:
    """Whether `word` is the name or the symbol of a unit.

    >>> is_unit("cm"), is_unit("Meters"), is_unit("apples")
    (True, True, False)
    """
    return _singular(word) in _UNITS


def _singular(word: str) -> str:
    word = word.lower()
    for name in (word, word.removesuffix("s"), word.removesuffix("es")):
        if name in _UNITS:
            return name
    return word.removesuffix("s") if len(word) > 3 else word


_PART = re.compile(r"(per\b|/)|(square|sq|cubic|cu)\b|([a-z$]+)|\^?\{?(-?\d)\}?|[\s.*·-]+", re.IGNORECASE)


def parse_unit(text: str) -> Unit:
    """The unit that `text` names, such as "square cm", "km/h" or "miles per hour". Unknown words are dimensions.

    >>> parse_unit("square meters") == parse_unit("m") ** 2, parse_unit("apples").dimensions
    (True, {'apple': 1})
    """
    unit, previous, sign, power = NO_UNIT, NO_UNIT, 1, 1
    for per, prefix, word, exponent in (match.groups() for match in _PART.finditer(text)):
        if per:
            sign = -1
        elif prefix:
            power = 2 if prefix.lower().startswith("sq") else 3
        elif word:
            previous = _UNITS.get(_singular(word), Unit(Fraction(1), {_singular(word): 1})) ** (sign * power)
            unit, power = unit * previous, 1
        elif exponent:
            unit *= previous ** (int(exponent) - 1)
    return unit
