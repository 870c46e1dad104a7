"""Algorithms with random modifiers satisfy every law, although no file names them.

``PURERL_PROFILE=thorough`` draws twenty compositions of each algorithm.
"""

from __future__ import annotations

import functools
from itertools import count

import pytest
from hypothesis_checks import IS_THOROUGH, check_law, marks_of

from purerl.algos.algebra import Algorithm
from purerl.composition import Composition, build_algorithm
from purerl.config.presets import presets
from purerl.explain.algorithm import algorithm_named, composition_named
from purerl.plugins import kind_of, names
from purerl.testing import LAWS, Law, exemptions_of, random_composition
from purerl.testing.laws.execution import compiled_equals_eager

SEEDS = range(20) if IS_THOROUGH else range(1)


def _compositions() -> list[Composition]:
    """Random compositions of each algorithm, and further ones until every modifier is in one."""
    drawn, seeds = [random_composition(name, seed) for name in names("algorithm") for seed in SEEDS], count(len(SEEDS))
    while missing := {*names("modifier")} - {kind_of(modifier) for each in drawn for modifier in each.modifiers}:
        seed = next(seeds)
        more = (random_composition(name, seed) for name in names("algorithm"))
        drawn += [each for each in more if missing & {*map(kind_of, each.modifiers)}]
    return drawn


COMPOSITIONS = _compositions()
MATRIX = [
    pytest.param(
        law,
        composition,
        id="-".join([*map(kind_of, (composition.base, *composition.modifiers)), law.__name__]),
        marks=marks_of(law),
    )
    for number, composition in enumerate(COMPOSITIONS)
    for law in LAWS
    if law.__name__ not in exemptions_of(composition)
    # Compilation takes longer than all other laws together: a third of the compositions, unless thorough.
    if law is not compiled_equals_eager or number % 3 == 0 or IS_THOROUGH
]


@functools.cache
def _algorithm(composition: Composition | str) -> Algorithm:
    """The algorithm of a composition or of a preset; building it takes as long as a law."""
    return algorithm_named(composition) if isinstance(composition, str) else build_algorithm(composition)


@pytest.mark.parametrize(("law", "composition"), MATRIX)
def test_composition_satisfies_law(law: Law, composition):
    check_law(law, _algorithm(composition), few=True)


@pytest.mark.parametrize(
    ("law", "name"),
    [
        pytest.param(law, name, id=f"{name}-{law.__name__}")
        for name in presets()
        for law in LAWS
        if law.__name__ not in exemptions_of(composition_named(name)) and law is not compiled_equals_eager  # slow
    ],
)
def test_preset_satisfies_law(law: Law, name: str):
    check_law(law, _algorithm(name), few=True)
