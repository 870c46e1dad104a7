"""One law, one algorithm, and the batches that Hypothesis draws: what the matrix and the mutants have in common."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from purerl.algos.algebra import Algorithm
from purerl.testing import Law, Layout, example_batch, fields_of, layouts, random_layout

__all__ = ["hold"]


def hold(law: Law, algorithm: Algorithm, **options) -> None:
    """Raise what `law` raises on the first drawn batch on which it does; `options` are settings of Hypothesis."""
    fields = fields_of(algorithm)
    pairs = "chosen" in fields

    # Hypothesis begins with the smallest batch there is, so two others go ahead, on which every mutant shows.
    @settings(**options)
    @example(layout=random_layout(0, pairs=pairs), seed=0)
    @example(layout=random_layout(5, pairs=pairs), seed=5)
    @given(layout=layouts(pairs=pairs), seed=st.integers(0, 2**16))
    def holds(layout: Layout, seed: int) -> None:
        law(algorithm, example_batch(fields, layout, seed=seed))

    holds()
