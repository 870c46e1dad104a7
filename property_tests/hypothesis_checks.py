"""Test one algorithm with one law, on batches that Hypothesis generates."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from shape_checks import shape_checks_disabled

from purerl.algos.algebra import Algorithm
from purerl.testing import SINGLE_BATCH_LAWS, Law, Layout, example_batch, fields_of, layouts, random_layout
from purerl.testing.laws import compiled_equals_eager

__all__ = ["check_law", "marks_of"]

# Every mutant in mutants.py is detected on at least one of these two batches.
FIRST_SEED, SECOND_SEED = 9, 7


def marks_of(law: Law) -> tuple[pytest.MarkDecorator, ...]:
    """The marks of tests of `law`: compilation takes longer than all other laws together."""
    return (pytest.mark.slow,) if law is compiled_equals_eager else ()


def check_law(law: Law, algorithm: Algorithm, **options) -> None:
    """Raise the error of `law` on the first batch that violates it; `options` are settings of Hypothesis."""
    fields = fields_of(algorithm)
    pairs = "chosen" in fields

    def check(layout: Layout, seed: int) -> None:
        with shape_checks_disabled() if law is compiled_equals_eager else nullcontext():
            law(algorithm, example_batch(fields, layout, seed=seed))

    if law in SINGLE_BATCH_LAWS:
        check(random_layout(FIRST_SEED, pairs=pairs), FIRST_SEED)
        return

    # Hypothesis starts with the smallest batch, on which few mutants are detected, so two larger batches run first.
    test = given(layout=layouts(pairs=pairs), seed=st.integers(0, 2**16))(check)
    for seed in (SECOND_SEED, FIRST_SEED):
        test = example(layout=random_layout(seed, pairs=pairs), seed=seed)(test)
    settings(**options)(test)()
