"""Keys and values of finished sequences, from which the next turn of an episode continues.

The model has read all tokens of a finished sequence except the last one. Their keys and values are copied out of the
table into pages of 16 tokens. A later request that begins with the whole sequence reads only what follows. It is
recognized by its tokens: the hashes of its prefixes are looked up, and then the tokens are compared.

The planes grow with the pages in use, up to a bound. They are freed when no sequence is in use.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from purerl.backends.hf.sampling.table import Table

__all__ = ["PAGE", "CachedSequence", "FinishedRow", "PrefixCache", "prefix_hashes"]

PAGE = 16
"""Tokens of a page."""

_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class FinishedRow(NamedTuple):
    """A row of the table, the key of its request, and all of its tokens."""

    row: int
    key: str
    tokens: tuple[int, ...]


@frozen(eq=False)
class CachedSequence:
    """A finished sequence: the key of its request, its tokens and their hash, and the pages of its keys and values."""

    key: str
    tokens: tuple[int, ...]
    hash: int
    pages: tuple[int, ...]

    @property
    def length(self) -> int:
        """Tokens whose keys and values are stored: all but the last."""
        return len(self.tokens) - 1


class PrefixCache:
    """Finished sequences with at most `max_tokens` tokens together, counted in whole pages.

    If there is no room, the sequences that finished first are dropped. Requests that continue a sequence drop it, too.
    """

    def __init__(self, max_tokens: int, device: torch.device) -> None:
        self._device = device
        self._max_pages = -(-max_tokens // PAGE)
        self._sequences: dict[int, CachedSequence] = {}  # by the hash of their tokens; those that finished first, first
        self._planes: dict[Hashable, Tensor] = {}
        self._pages = 0
        self._free: list[int] = []

    @property
    def room(self) -> int:
        """Tokens that fit beside the sequences that are stored."""
        return (self._max_pages - self._pages + len(self._free)) * PAGE

    def store(self, table: Table, names: Sequence[Hashable], rows: Sequence[FinishedRow]) -> None:
        """Copy the planes `names` of `rows`, which have read the columns before `table.now`.

        A sequence with more than `max_tokens` tokens is not stored.
        """
        added = [(row.row, self._add(row.key, row.tokens)) for row in rows]
        present = set(self._sequences.values())  # one of them may have been dropped to make room for the next one
        stored = {sequence: row for row, sequence in added if sequence in present}
        if not stored:
            return
        lengths = self._tensor([[sequence.length] for sequence in stored])
        # In the columns before a sequence its first token is repeated.
        positions = (torch.arange(-int(lengths.max()), 0, device=self._device) + lengths).clamp(min=0)
        slots, columns = self.slots(list(stored), positions), positions + table.now - lengths
        for name, values in table.gather(names, self._tensor(list(stored.values())), columns):
            # `index_copy_` is faster than an index of two dimensions, and accepts that a slot has the same value twice.
            self._plane(name, values).index_copy_(0, slots.flatten(), values.flatten(0, 1))

    def find(self, tokens: Sequence[int]) -> CachedSequence | None:
        """The longest sequence with which `tokens` begin."""
        if not self._sequences:
            return None
        found = (self._sequences.get(value) for value in reversed(prefix_hashes(tokens)))
        matches = (each for each in found if each is not None and each.tokens == tuple(tokens[: len(each.tokens)]))
        return next(matches, None)

    def read(self, name: Hashable, slots: Tensor) -> Tensor:
        """The plane `name` at `slots` [rows, columns]: [rows, heads, columns, width]."""
        # `index_select` is several times as fast as an index of two dimensions.
        return self._planes[name].index_select(0, slots.flatten()).unflatten(0, slots.shape).transpose(1, 2)

    def slots(self, sequences: Sequence[CachedSequence], positions: Tensor) -> Tensor:
        """The indices in the planes of the tokens at `positions` [sequences, columns] of `sequences`."""
        most = max(len(sequence.pages) for sequence in sequences)
        pages = self._tensor([[*sequence.pages, *[0] * (most - len(sequence.pages))] for sequence in sequences])
        return pages.gather(1, positions // PAGE) * PAGE + positions % PAGE

    def drop(self, sequences: Collection[CachedSequence]) -> None:
        """Free the pages of `sequences`."""
        for sequence in sequences:
            del self._sequences[sequence.hash]
            self._free += sequence.pages
        if not self._sequences:
            self.clear()

    def drop_requests(self, keys: Collection[str]) -> None:
        """Free the pages of the sequences of the requests with these keys."""
        self.drop([sequence for sequence in self._sequences.values() if sequence.key in keys])

    def clear(self) -> None:
        """Drop all sequences, and free the memory."""
        self._sequences, self._planes, self._pages, self._free = {}, {}, 0, []

    def _add(self, key: str, tokens: tuple[int, ...]) -> CachedSequence | None:
        """A new sequence with free pages. Other sequences are dropped if there are not enough."""
        needed, value = -(-(len(tokens) - 1) // PAGE), prefix_hashes(tokens)[-1]
        if needed > self._max_pages:
            return None
        self.drop([each for each in (self._sequences.get(value),) if each])
        while self.room < needed * PAGE:
            self.drop(list(islice(self._sequences.values(), 1)))
        self._reserve(needed)
        pages, self._free = self._free[:needed], self._free[needed:]
        self._sequences[value] = sequence = CachedSequence(key, tokens, value, tuple(pages))
        return sequence

    def _reserve(self, needed: int) -> None:
        """Make sure that `needed` pages are free."""
        if len(self._free) < needed:
            pages = min(max(2 * self._pages, self._pages + needed), self._max_pages)
            self._free += range(self._pages, pages)
            self._pages = pages

    def _plane(self, name: Hashable, like: Tensor) -> Tensor:
        """The plane `name` [slots, heads, width] in the current size, with the dtype and the device of `like`."""
        old = self._planes.get(name, like.new_empty(0, *like.shape[2:]))
        if len(old) < self._pages * PAGE:
            self._planes[name] = like.new_empty(self._pages * PAGE, *like.shape[2:])
            self._planes[name][: len(old)] = old
        return self._planes[name]

    def _tensor(self, values: list) -> Tensor:
        return torch.tensor(values, device=self._device)


def prefix_hashes(tokens: Sequence[int]) -> list[int]:
    """A hash of each prefix of `tokens`, from the first token alone to all of them.

    >>> prefix_hashes([7, 8, 9])[:2] == prefix_hashes([7, 8])
    True
    """
    numbers = np.asarray(tokens, dtype=np.uint64) + np.uint64(1)
    return (numbers * np.multiply.accumulate(np.full(len(numbers), _FACTOR))).cumsum(dtype=np.uint64).tolist()
