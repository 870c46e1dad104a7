"""Per-token tensors of several rows that all end in the same column.

    column      start                now
    row 0           . . a a a a a a a
    row 1           b b b b b b b b b
    row 2           . . . . . . c c c

A decoding step writes one column, `now`, for all rows, although their sequences have different lengths. Attention reads
a view, without a copy. The cost: every row is as wide as the longest row that is decoded beside it.

Column numbers only grow. The tensors store a window of columns. When the window is full, it is moved or widened. After
that it has at least as many free columns as columns in use: a quarter of them before, for longer rows that are added,
and the others for the next steps. When no row is in use, `release` frees the memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

__all__ = ["Table", "compaction_moves"]


class Table:
    """Named planes [rows, heads, columns, width], which share rows and columns.

    max_rows    maximum number of rows in use
    rows        number of rows in use; they are the first ones
    start, now  the columns in use: from `start` to `now`, which is included

    Rows are 0 in the columns in use before their own. In no stored column do they contain values of other rows, or
    memory that was not initialized: attention multiplies values of other columns by 0, and 0 times NaN is NaN, so that
    a row with NaN would change other rows.
    """

    def __init__(self, max_rows: int) -> None:
        self.rows = self.start = self.now = 0
        self._max_rows = max_rows
        self._planes: dict[Hashable, Tensor] = {}
        self._size = (0, 0)
        self._origin = 0

    @property
    def names(self) -> tuple[Hashable, ...]:
        """The names of the planes."""
        return tuple(self._planes)

    def add_plane(self, name: Hashable, like: Tensor) -> None:
        """Add the plane `name`, if it does not exist, with the heads, width, dtype and device of `like`."""
        if name not in self._planes:
            (rows, columns), (_, heads, _, width) = self._size, like.shape
            self._planes[name] = like.new_zeros(rows, heads, columns, width)

    def view(self, name: Hashable, rows: slice, start: int, stop: int) -> Tensor:
        """The plane `name` from column `start` to column `stop`, which is not included."""
        return self._columns(self._planes[name], rows, start, stop)

    def gather(self, names: Iterable[Hashable], rows: Tensor, columns: Tensor) -> Iterator[tuple[Hashable, Tensor]]:
        """Each of the planes `names` in the columns [n, columns] of `rows` [n]: [n, columns, heads, width]."""
        indices: dict[int, Tensor] = {}  # by the number of heads, which most planes have in common
        for name in names:
            plane = self._planes[name]
            heads = plane.shape[1]
            if heads not in indices:
                number = rows[:, None] * heads + torch.arange(heads, device=rows.device)
                indices[heads] = number[:, None, :] * plane.shape[2] + (columns - self._origin)[:, :, None]
            index = indices[heads]
            yield name, plane.flatten(0, 2).index_select(0, index.flatten()).unflatten(0, index.shape)

    def add_rows(self, count: int, before: int) -> slice:
        """Add `count` rows with `before` columns before `now`, which the caller writes. Returns their indices.

        Earlier columns are 0.
        """
        old, new = slice(0, self.rows), slice(self.rows, self.rows + count)
        start = self.start if self.rows else self.now
        self.start = min(start, self.now - before)
        if not self.rows:
            self._origin = self.start  # The memory layout of rows does not depend on earlier rows.
        self._reserve(new.stop)
        self.rows = new.stop
        for plane in self._planes.values():
            self._columns(plane, old, self.start, start).zero_()
            _clear_outside(plane[new], self.now - before - self._origin, self.now - self._origin)
        return new

    def add_column(self) -> None:
        """Increase `now` by one."""
        self.now += 1
        self._reserve(self.rows)

    def remove_rows(self, sources: Sequence[int], holes: Sequence[int], rows: int, start: int) -> None:
        """Move the rows `sources` to `holes`, then keep the first `rows` rows and the columns from `start` on."""
        self.rows, self.start = rows, start
        if not sources:
            return
        device = next(iter(self._planes.values())).device
        moved, target = (torch.tensor(indices, device=device) for indices in (sources, holes))
        for plane in self._planes.values():
            plane.index_copy_(0, target, plane.index_select(0, moved))

    def release(self) -> None:
        """Free the memory if no row is in use, so that training can use it between two phases of sampling."""
        if not self.rows:
            self._size = (0, 0)
            for name, plane in self._planes.items():
                self._planes[name] = plane.new_empty(0, plane.shape[1], 0, plane.shape[3])

    def _columns(self, plane: Tensor, rows: slice, start: int, stop: int) -> Tensor:
        return plane[rows, :, start - self._origin : stop - self._origin]

    def _reserve(self, rows: int) -> None:
        """Make room for `rows` rows and for columns `start` to `now + 1`. The rows in use keep their values."""
        (all_rows, all_columns), needed = self._size, self.now + 2 - self.start
        if rows <= all_rows and 0 <= self.start - self._origin <= all_columns - needed:
            return
        more_rows = max(rows, min(2 * all_rows, self._max_rows))
        self._size = (all_rows if rows <= all_rows else more_rows, max(2 * needed, all_columns))
        # A quarter of the free columns is before `start`, for rows that return after a turn and are longer.
        origin = self.start - (self._size[1] - needed) // 4
        for name, plane in self._planes.items():  # one by one, so that only one plane exists twice at any time
            self._planes[name] = self._resized(plane, origin)
        self._origin = origin

    def _resized(self, plane: Tensor, origin: int) -> Tensor:
        """`plane` in the current size, with `origin` as its first column."""
        (rows, columns), (_, heads, _, width) = self._size, plane.shape
        is_same_size = plane.shape[0] == rows and plane.shape[2] == columns
        new = plane if is_same_size else plane.new_empty(rows, heads, columns, width)
        if self.rows:
            first = max(self.start, self._origin)
            used = self._columns(plane, slice(0, self.rows), first, self.now + 1)
            own = slice(first - origin, self.now + 1 - origin)
            new[: self.rows, :, own] = used.clone() if is_same_size else used
            _clear_outside(new[: self.rows], own.start, own.stop)
        return new


def _clear_outside(rows: Tensor, start: int, stop: int) -> None:
    """Set the columns of `rows` [rows, heads, columns, width] before `start` and from `stop` on to 0."""
    rows[:, :, :start].zero_()
    rows[:, :, stop:].zero_()


def compaction_moves(removed: Sequence[int], rows: int) -> tuple[list[int], list[int]]:
    """The moves after which the rows that are not `removed` come first, of `rows` rows: (sources, holes).

    >>> compaction_moves([0, 3], 5)
    ([4], [0])
    """
    holes, remaining = set(removed), rows - len(removed)
    sources = [row for row in range(remaining, rows) if row not in holes]
    return sources, [row for row in sorted(holes) if row < remaining]
