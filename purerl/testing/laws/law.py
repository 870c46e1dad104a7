"""What a law is, and what laws compare with."""

from __future__ import annotations

import functools
from collections.abc import Callable

from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Algorithm
from purerl.testing.outcome import Outcome, difference

__all__ = ["Law", "law", "map_rows", "same"]

Law = Callable[[Algorithm, TensorDict], None]


def law(function: Law) -> Law:
    """Name the law in whatever it raises: a crash breaks it no less than a difference."""

    @functools.wraps(function)
    def named(algorithm: Algorithm, batch: TensorDict) -> None:
        try:
            function(algorithm, batch)
        except AssertionError as error:
            raise AssertionError(f"{function.__name__}: {error}") from error
        except Exception as error:
            raise AssertionError(f"{function.__name__}: {type(error).__name__}: {error}") from error

    return named


def same(expected: Outcome, found: Outcome, *, tolerance: float = 1e-9) -> None:
    """Raise AssertionError with the `difference` of two outcomes, if there is one."""
    gap = difference(expected, found, tolerance=tolerance)
    assert gap is None, gap


def map_rows(outcome: Outcome, function: Callable[[Tensor], Tensor]) -> Outcome:
    """`outcome` with `function` of everything that has rows."""
    return outcome._replace(rows={name: function(value) for name, value in outcome.rows.items()})
