"""One law, one algorithm, and the batches that Hypothesis draws: what the matrix and the mutants have in common."""

from __future__ import annotations

from contextlib import nullcontext

from hypothesis import example, given, settings
from hypothesis import strategies as st
from shape_checks import unchecked

from purerl.algos.algebra import Algorithm
from purerl.testing import ONCE, Law, Layout, example_batch, fields_of, layouts, random_layout
from purerl.testing.laws import compiled_equals_eager

__all__ = ["hold"]

FIRST, SECOND = 9, 7


def hold(law: Law, algorithm: Algorithm, **options) -> None:
    """Raise what `law` raises on the first drawn batch on which it does; `options` are settings of Hypothesis."""
    fields = fields_of(algorithm)
    pairs = "chosen" in fields

    def holds(layout: Layout, seed: int) -> None:
        with unchecked() if law is compiled_equals_eager else nullcontext():
            law(algorithm, example_batch(fields, layout, seed=seed))

    if law in ONCE:
        holds(random_layout(FIRST, pairs=pairs), FIRST)
        return

    # Hypothesis begins with the smallest batch there is, so two others go ahead, on which every mutant shows.
    drawn = given(layout=layouts(pairs=pairs), seed=st.integers(0, 2**16))(holds)
    for seed in (SECOND, FIRST):
        drawn = example(layout=random_layout(seed, pairs=pairs), seed=seed)(drawn)
    settings(**options)(drawn)()
