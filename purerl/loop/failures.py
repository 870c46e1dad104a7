"""The failures of reward functions that are tolerated: a share of all completions of a step or of an evaluation."""

from __future__ import annotations

import math
from textwrap import indent

from attrs import define

from purerl.errors import RewardError
from purerl.rewards.outcomes import Failure

__all__ = ["FailureLimit", "describe_failure", "tolerated"]

_ALWAYS_TOLERATED = 3


def tolerated(max_rate: float, rows: int) -> float:
    """How many failures are tolerated on `rows` completions.

    A rate says little about a few completions. So three failures are always tolerated, but at most on half of the
    completions. With the rate 0 none is.

    >>> tolerated(0.1, 1), tolerated(0.1, 4), tolerated(0.1, 16), tolerated(0.1, 100), tolerated(0.0, 100)
    (0.5, 2.0, 3, 10.0, 0.0)
    """
    return max(max_rate * rows, min(_ALWAYS_TOLERATED, rows / 2)) if max_rate else 0.0


@define
class FailureLimit:
    """Counts failures on completions that belong together, such as those of a step.

    max_rate  the share of the completions on which reward functions may fail, see `tolerated`
    do        what to do if there are too many
    expected  number of completions, as far as it is known before they are scored
    scored    number of completions so far, including those that are being scored now
    count     number of failures so far
    """

    max_rate: float
    do: str
    expected: int = 0
    scored: int = 0
    count: int = 0
    _first: Failure | None = None

    def add(self, failure: Failure) -> None:
        """Count `failure`. Raises RewardError with the first one, as soon as there are too many."""
        self.count += 1
        self._first = self._first or failure
        rows = max(self.expected, self.scored)
        limit = tolerated(self.max_rate, rows)
        if self.count > limit:
            what = "reward functions failed on too many completions; the first failure:"
            raise RewardError(
                f"{what}\n{describe_failure(self._first)}",
                got=f"{self.count} of {rows} already",
                need=f"at most {math.floor(limit)}, with max_failure_rate = {self.max_rate:g}",
                do=self.do,
            )


def describe_failure(failure: Failure) -> str:
    """The function, what happened, and its traceback."""
    return indent(f"{failure.function} {failure.kind}\n{failure.traceback}".rstrip(), "  | ")
