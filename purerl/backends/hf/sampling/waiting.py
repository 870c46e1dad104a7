"""Requests that wait for a free row of the generator's table, and which of them are admitted next.

Requests are admitted in the order in which they were submitted. So episodes with several turns advance together: their
rows have similar lengths, and attention reads few columns that are masked. The price is that many sequences are kept
between two turns. If there may be no room for all of them, the longest of the kept sequences are continued first:
their episodes are likely to end first, and free their memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence

from purerl.backends.requests import PendingRequest

__all__ = ["WaitingRequests"]


class WaitingRequests:
    """Requests that wait, in the order in which they were submitted."""

    def __init__(self) -> None:
        self._queue: deque[PendingRequest] = deque()
        self._continuing: set[str] = set()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, requests: Iterable[PendingRequest], continuing: Collection[str]) -> None:
        """Append `requests`. Those with the keys `continuing` continue a sequence that is kept."""
        self._queue.extend(requests)
        self._continuing.update(continuing)

    def add_first(self, requests: Sequence[PendingRequest]) -> None:
        """Admit `requests` before all others, in this order."""
        self._queue.extendleft(reversed(requests))

    def take(self, count: int, kept_tokens: int) -> list[PendingRequest]:
        """The next `count` requests.

        kept_tokens  that fit beside those that are kept already, and those of all rows of the table when they end
        """
        taken = [self._queue.popleft() for _ in range(count)]
        if sum(each.request.max_length for each in taken if each.request.keep) > kept_tokens:
            self.add_first(taken)
            taken = sorted(self._queue, key=self._length_of_continued, reverse=True)[:count]
        self._remove({each.request.key for each in taken})
        return taken

    def cancel(self, keys: Collection[str]) -> list[PendingRequest]:
        """Remove the requests with these keys, and return them."""
        cancelled = [each for each in self._queue if each.request.key in keys]
        self._remove({each.request.key for each in cancelled})
        return cancelled

    def _length_of_continued(self, pending: PendingRequest) -> int:
        """The number of its tokens if it continues a kept sequence; otherwise 0."""
        return len(pending.request.tokens) if pending.request.key in self._continuing else 0

    def _remove(self, keys: Collection[str]) -> None:
        self._queue = deque(each for each in self._queue if each.request.key not in keys)
        self._continuing.difference_update(keys)
