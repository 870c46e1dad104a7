"""Episodes in lockstep: the generator gets the requests of a turn together, when every episode has one.

Rows that are decoded together are computed in one matrix product, so the last bits of a log-probability depend on which
rows these are. In lockstep that is the same in every run. Otherwise it depends on when environments answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import NamedTuple

from purerl.protocols import Completion, Request
from purerl.rollouts.types import Generate

__all__ = ["Due", "Lockstep"]


class Due(NamedTuple):
    """The requests of a turn, in the order in which their episodes started, and keys that are not needed anymore."""

    requests: list[Request]
    released: list[str]


_NOTHING = Due([], [])


class Lockstep:
    """Episodes, and the requests of those that wait for each other.

    `take` is called in the thread of the engine while every coroutine waits; all other methods in the event loop.
    `on_change` is called when an episode ends.
    """

    def __init__(self, on_change: Callable[[], object]) -> None:
        self._on_change = on_change
        self._numbers = count()
        self._num_waiting = 0  # open episodes that wait for each other
        self._episodes: dict[str, int | None] = {}  # by the key of its request, the number of an episode that waits
        self._held: dict[str, tuple[int, Request]] = {}
        self._released: deque[str] = deque()

    @contextmanager
    def episode(self, generate: Generate, *, waits: bool) -> Iterator[Generate]:
        """`generate` for one episode, which makes one request at a time, and ends with the block.

        If it `waits`, its requests are held until all others that wait have one too. What the generator keeps for its
        next turn is released at the end: if it waits, between two turns, so that it does not depend on time.
        """
        number, kept = next(self._numbers), list[str]()

        async def generate_turn(requests: Sequence[Request]) -> list[Completion]:
            keys = [request.key for request in requests]
            kept.extend(request.key for request in requests if request.keep)
            self._episodes.update(dict.fromkeys(keys, number if waits else None))
            try:
                return await generate(requests)
            finally:
                for key in keys:
                    del self._episodes[key]

        self._num_waiting += waits
        try:
            yield generate_turn
        finally:
            self._released.extend(kept)
            self._num_waiting -= waits
            self._on_change()

    @property
    def num_held(self) -> int:
        """The number of requests that wait for those of other episodes."""
        return len(self._held)

    def hold(self, requests: Sequence[Request]) -> list[Request]:
        """Hold those of `requests` that an episode makes that waits, and return the others."""
        numbers = {request.key: self._episodes.get(request.key) for request in requests}
        self._held.update((r.key, (number, r)) for r in requests if (number := numbers[r.key]) is not None)
        return [request for request in requests if numbers[request.key] is None]

    def releases(self, key: str) -> bool:
        """Whether the request with this key belongs to an episode, whose end releases what the generator keeps."""
        return key in self._episodes

    def withdraw(self, key: str) -> bool:
        """Forget the request with this key. Returns whether it was held."""
        return self._held.pop(key, None) is not None

    def take(self) -> Due:
        """The requests that the generator gets now: none if an episode that waits has no request."""
        if len(self._held) < self._num_waiting:
            return _NOTHING
        held = [self._held.pop(key) for key in list(self._held)]
        released = [self._released.popleft() for _ in range(len(self._released))]
        return Due([request for _, request in sorted(held, key=lambda pair: pair[0])], released)
