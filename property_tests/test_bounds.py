"""Every algorithm has finite results with each setting at each of its declared bounds."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from attrs import field, frozen, validators
from test_laws import MODULES

from purerl.algos import grpo
from purerl.algos.algebra import Algorithm
from purerl.algos.parts.settings import integer, number
from purerl.testing import check_bounds
from purerl.testing.bounds import bounds_of


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES.keys())
def test_results_are_finite_at_every_bound(module: ModuleType):
    check_bounds(module, batches=3)


@frozen
class BoundedConfig:
    """A Config with bounds of all kinds, declared by purerl and by attrs."""

    clip: float = number("a range", 0.2, min=0, max=1)
    scale: float = number("a divisor", 1.0, above=0, infinite="no scale")
    count: int = integer("a number", 3, min=2)
    plain: float = field(default=0.5, validator=[validators.gt(0), validators.le(2)])
    free: float = number("any number", 0.0)


def test_bounds_are_those_of_the_validators():
    assert [tuple(bound) for bound in bounds_of(BoundedConfig)] == [
        ("clip", ">= 0", 0.0),
        ("clip", "<= 1", 1.0),
        ("scale", "> 0", 0.01),
        ("scale", "<= inf", float("inf")),
        ("count", ">= 2", 2),
        ("plain", "> 0", 0.01),
        ("plain", "<= 2", 2.0),
    ]


@frozen
class DivisorConfig:
    """A Config with a divisor that may be 0."""

    divisor: float = number("the divisor of the loss", 1.0, min=0)


def _divided(config: DivisorConfig) -> Algorithm:
    [policy] = grpo.algorithm().objectives
    term = policy.terms[0]
    weight = 1 / config.divisor if config.divisor else float("nan")
    return grpo.algorithm()._replace(objectives=(policy._replace(terms=(term._replace(weight=weight),)),))


@pytest.mark.parametrize("exemptions", [{}, {"finite_at_impossible_tokens": "a reason"}])
def test_a_result_that_is_not_finite_at_a_bound_is_found(exemptions: dict[str, Any]):
    module = SimpleNamespace(__name__="divided", Config=DivisorConfig, algorithm=_divided, EXEMPTIONS=exemptions)
    message = "divided: divisor = 0, at its bound >= 0: finite_at_extreme_ratios: "
    with pytest.raises(AssertionError, match=f"^{message}"):
        check_bounds(module)  # pyright: ignore[reportArgumentType]
