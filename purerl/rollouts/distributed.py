"""Rollouts on several ranks: each rank runs the workflow on its share of the draws, and every rank gets all groups."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Protocol

from purerl.ranks import Ranks
from purerl.rollouts.rollouts import Rollouts
from purerl.rollouts.types import Draw, Group

__all__ = ["DistributedRollouts", "Supplier", "distributed"]

_POLL = 0.2  # seconds between two looks at what the other ranks have finished, if any group will do
_WHAT = "groups of all ranks"


class Supplier(Protocol):
    """The part of `Rollouts` that a window needs."""

    def submit(self, draws: Sequence[Draw]) -> None: ...
    def collect(self, *, draws: Collection[int] | None = None) -> list[Group]: ...
    def cancel(self, draws: Collection[int]) -> None: ...
    @property
    def in_flight(self) -> list[int]: ...


def distributed(rollouts: Rollouts, ranks: Ranks) -> Supplier:
    """`rollouts` of all `ranks`, which are those of this process if it is the only one."""
    return rollouts if ranks.size == 1 else DistributedRollouts(rollouts, ranks)


class DistributedRollouts:
    """The same methods as `Rollouts`. Every rank calls them with the same draws, and gets the same groups.

    Rank r runs the draws whose numbers are r modulo the number of ranks. The seeds of a draw do not depend on the rank.
    """

    def __init__(self, local: Rollouts, ranks: Ranks) -> None:
        self._local, self._ranks = local, ranks
        self._running: dict[int, None] = {}

    def submit(self, draws: Sequence[Draw]) -> None:
        """Start the workflow on each of `draws`, on its rank. Raises InputError for a number that is in flight."""
        self._local.submit([draw for draw in draws if self._is_own(draw.number)])
        self._running.update((draw.number, None) for draw in draws)

    def collect(self, *, draws: Collection[int] | None = None) -> list[Group]:
        """All groups that are finished on any rank, as `Rollouts.collect`: every rank waits for those of its draws."""
        own = None if draws is None else [number for number in draws if self._is_own(number)]
        groups: list[Group] = []
        since = time.monotonic()
        while self._running and not groups:
            finished = self._local.collect(_POLL if own is None else None, draws=own, since=since)
            groups = [group for part in self._ranks.gather(finished, _WHAT) for group in part]
            if draws is not None:
                break
        for group in groups:
            del self._running[group.draw]
        return sorted(groups, key=lambda group: group.draw)

    def cancel(self, draws: Collection[int]) -> None:
        """Stop the workflows of `draws`, and their requests. Their groups are not returned."""
        self._local.cancel([number for number in draws if self._is_own(number)])
        for number in draws:
            del self._running[number]

    @property
    def in_flight(self) -> list[int]:
        """The numbers of the draws of all ranks whose groups have not been collected."""
        return [*self._running]

    def _is_own(self, number: int) -> bool:
        return number % self._ranks.size == self._ranks.rank
