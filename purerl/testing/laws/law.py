"""The type of a law, and functions that the laws share."""

from __future__ import annotations

import functools
from collections.abc import Callable

from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Algorithm
from purerl.testing.outcome import Outcome, find_difference

__all__ = ["Law", "assert_same", "law", "map_rows"]

Law = Callable[[Algorithm, TensorDict], None]


def law(function: Law) -> Law:
    """Decorate a law: its name is the first word of the message, and any exception becomes an AssertionError.

    An algorithm that crashes on a batch violates the law.
    """

    @functools.wraps(function)
    def named(algorithm: Algorithm, batch: TensorDict) -> None:
        try:
            function(algorithm, batch)
        except AssertionError as error:
            raise AssertionError(f"{function.__name__}: {error}") from error
        except Exception as error:
            raise AssertionError(f"{function.__name__}: {type(error).__name__}: {error}") from error

    return named


def assert_same(expected: Outcome, actual: Outcome, *, tolerance: float = 1e-9) -> None:
    """Raise AssertionError with the result of `find_difference` if the two outcomes differ."""
    message = find_difference(expected, actual, tolerance=tolerance)
    assert message is None, message


def map_rows(outcome: Outcome, function: Callable[[Tensor], Tensor]) -> Outcome:
    """`outcome` with `function` applied to every tensor in `rows`."""
    return outcome._replace(rows={name: function(value) for name, value in outcome.rows.items()})
