"""The laws, for one algorithm with a modifier."""

from __future__ import annotations

from collections.abc import Collection

from purerl.algos.algebra import Algorithm
from purerl.testing import check_algorithm

__all__ = ["check_laws"]

_SLOW = {"compiled_equals_eager"}
"""A second for each algorithm. The property tests test this law on random compositions."""


def check_laws(algorithm: Algorithm, *, batches: int, exempt: Collection[str] = ()) -> None:
    """Raise AssertionError if `algorithm` violates a law that is not in `exempt`."""
    check_algorithm(algorithm, batches=batches, exempt={*exempt, *_SLOW})
