"""The bounds of settings: an algorithm has to work with every value that its Config accepts, also the first and last.

A bound is declared by `number` and `integer` of `purerl.algos.parts.settings`, or by the validators `ge`, `gt`, `le`
and `lt` of attrs.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import attrs

from purerl.algos.algebra import Algorithm
from purerl.errors import ConfigError
from purerl.testing.batches import example_batch, fields_of, random_layout
from purerl.testing.laws import Law
from purerl.testing.laws.gradients import (
    finite_at_extreme_ratios,
    finite_at_impossible_tokens,
    zero_loss_without_counted_tokens,
)
from purerl.testing.laws.purity import reads_are_declared

__all__ = ["Bound", "bounds_of", "check_bounds"]

_LAWS: tuple[Law, ...] = (
    reads_are_declared,
    finite_at_extreme_ratios,
    finite_at_impossible_tokens,
    zero_loss_without_counted_tokens,
)
_DISTANCES = {">=": 0, "<=": 0, ">": 1, "<": -1}
"""By the comparison of a value with its bound: 0 if the bound is allowed; or the direction to values that are."""

_NEXT = 0.01
"""The distance from a bound that is not allowed itself; of integers it is 1."""


class Bound(NamedTuple):
    """A bound of the setting `name`, such as "above 0", and the `value` that is tested: the bound, or one beside it."""

    name: str
    text: str
    value: float


def bounds_of(config: type) -> Iterator[Bound]:
    """All declared bounds of the settings of the class `config`. Beside an open bound, the value next to it is tested.

    >>> from purerl.algos import ppo
    >>> [tuple(bound) for bound in bounds_of(ppo.Config) if bound.name == "lambda_"]
    [('lambda_', '>= 0', 0.0), ('lambda_', '<= 1', 1.0)]
    """
    for field in attrs.fields(config):
        kind = type(field.default)
        for comparison, bound in (*field.metadata.get("bounds", ()), *_of_validator(field.validator)):
            if kind in (int, float):
                value = kind(bound + _DISTANCES[comparison] * (1 if kind is int else _NEXT))
                yield Bound(field.name, f"{comparison} {bound:g}", value)


def _of_validator(validator: Any) -> Iterator[tuple[str, float]]:
    """The bounds that a validator of attrs checks, or the validators that it combines."""
    for each in getattr(validator, "_validators", ()):
        yield from _of_validator(each)
    compared = {operator.ge: ">=", operator.gt: ">", operator.le: "<=", operator.lt: "<"}
    comparison = compared.get(getattr(validator, "compare_func", None))
    if comparison:
        yield comparison, validator.bound


def check_bounds(module: ModuleType, *, seed: int = 0, batches: int = 5) -> None:
    """Test that the results of `module` are finite with each setting at each of its declared bounds.

    The other settings have their defaults. A bound that does not go with them, because the Config or the algorithm
    refuses it, is left out, and so is a law that the module is exempt from.

    Raises: AssertionError with the setting, its bound and the law that is violated.
    """
    exempt = getattr(module, "EXEMPTIONS", {})
    for bound in bounds_of(module.Config):
        algorithm = _algorithm_at(module, bound)
        fields = fields_of(algorithm) if algorithm else ()
        for number in range(seed, seed + batches) if algorithm else ():
            batch = example_batch(fields, random_layout(number, pairs="chosen" in fields), seed=number)
            for law in _LAWS:
                try:
                    None if law.__name__ in exempt else law(algorithm, batch)
                except AssertionError as error:
                    value = f"{bound.name} = {bound.value:g}, at its bound {bound.text}"
                    raise AssertionError(f"{module.__name__}: {value}: {error}") from error


def _algorithm_at(module: ModuleType, bound: Bound) -> Algorithm | None:
    """The algorithm of `module` with the setting at its `bound`; None if it is refused."""
    try:
        return module.algorithm(module.Config(**{bound.name: bound.value}))
    except ConfigError:
        return None
