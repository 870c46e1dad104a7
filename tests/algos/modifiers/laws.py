"""The laws, for one algorithm with a modifier."""

from __future__ import annotations

from collections.abc import Collection

from purerl.algos.algebra import Algorithm
from purerl.testing import check_algorithm
from purerl.testing.batches import STRICT_SEED

__all__ = ["check_laws"]

_SLOW = {"compiled_equals_eager"}
"""A second for each algorithm. The property tests test this law on random compositions."""


def check_laws(algorithm: Algorithm, *, exempt: Collection[str] = ()) -> None:
    """Raise AssertionError if `algorithm` violates a law that is not in `exempt`, on the batch of `STRICT_SEED`."""
    check_algorithm(algorithm, seed=STRICT_SEED, batches=1, exempt={*exempt, *_SLOW})
