"""A table of per-token tensors in which every row ends in the same column.

    column      start                now
    row 0           . . a a a a a a a
    row 1           b b b b b b b b b
    row 2           . . . . . . c c c

One decoding step writes one column, `now`, for all rows at once, wherever in its sequence each row is; what attention
reads is a view. The price: every row is as wide as the longest one that runs beside it.

Columns are numbered for ever: `now` only grows, and the tensors hold a window of columns that is moved on, or widened,
when it is full: at most once in as many steps as there are columns in use. Once no row is in use it can be given back.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from torch import Tensor

__all__ = ["Table", "moves"]


class Table:
    """Planes [rows, heads, columns, width], one for each name, that share rows and columns.

    rows        in use, the first so many; never more than `most_rows`
    start, now  the columns in use: start..now, with now included

    Rows come with 0 in all columns in use, never with what an earlier row left there: attention multiplies what it must
    not see by 0, and 0 times the NaN of a row that went wrong would be NaN in another.
    """

    def __init__(self, most_rows: int) -> None:
        self.rows = self.start = self.now = 0
        self._most_rows = most_rows
        self._planes: dict[Hashable, Tensor] = {}
        self._size = (0, 0)
        self._origin = 0

    def add(self, name: Hashable, like: Tensor) -> None:
        """Add the plane `name`, with the heads, width, dtype and device of `like`, if there is none yet."""
        if name not in self._planes:
            (rows, columns), (_, heads, _, width) = self._size, like.shape
            self._planes[name] = like.new_zeros(rows, heads, columns, width)

    def view(self, name: Hashable, rows: slice, start: int, stop: int) -> Tensor:
        """The plane `name` from column `start` to column `stop`, which is not included."""
        return self._cut(self._planes[name], rows, start, stop)

    def enter(self, count: int, before: int) -> slice:
        """Add `count` rows with `before` columns before `now`, all 0; the answer says which rows they are."""
        old, new = slice(0, self.rows), slice(self.rows, self.rows + count)
        start = self.start if self.rows else self.now
        self.start = min(start, self.now - before)
        if not self.rows:
            self._origin = self.start  # Where rows lie in memory does not depend on what ran before them.
        self._reserve(new.stop)
        self.rows = new.stop
        for plane in self._planes.values():
            self._cut(plane, old, self.start, start).zero_()
            self._cut(plane, new, self.start, self.now + 1).zero_()
        return new

    def step(self) -> None:
        """Go on to the next column."""
        self.now += 1
        self._reserve(self.rows)

    def leave(self, sources: Sequence[int], holes: Sequence[int], rows: int, start: int) -> None:
        """Move the rows `sources` to `holes`, and keep the first `rows` rows and the columns from `start`."""
        self.rows, self.start = rows, start
        if sources:
            for plane in self._planes.values():
                view = self._cut(plane, slice(None), start, self.now + 1)
                view[list(holes)] = view[list(sources)]

    def give_back(self) -> None:
        """Let go of the memory, if no row is in use: whoever computes between two phases of sampling has it then."""
        if not self.rows:
            self._size = (0, 0)
            for name, plane in self._planes.items():
                self._planes[name] = plane.new_empty(0, plane.shape[1], 0, plane.shape[3])

    def _cut(self, plane: Tensor, rows: slice, start: int, stop: int) -> Tensor:
        return plane[rows, :, start - self._origin : stop - self._origin]

    def _reserve(self, rows: int) -> None:
        """Make room for `rows` rows, and for the columns start..now and one more; what is in use stays."""
        (all_rows, all_columns), needed = self._size, self.now + 2 - self.start
        if rows <= all_rows and 0 <= self.start - self._origin <= all_columns - needed:
            return
        more_rows = max(rows, min(2 * all_rows, self._most_rows))
        self._size = (all_rows if rows <= all_rows else more_rows, max(2 * needed, all_columns))
        for name, plane in self._planes.items():  # one at a time, so that only one is there twice
            self._planes[name] = self._laid_out(plane)
        self._origin = self.start

    def _laid_out(self, plane: Tensor) -> Tensor:
        """`plane` in the size of now, with column `start` as its first."""
        (rows, columns), (_, heads, _, width) = self._size, plane.shape
        same = plane.shape[0] == rows and plane.shape[2] == columns
        new = plane if same else plane.new_empty(rows, heads, columns, width)
        if self.rows:
            first = max(self.start, self._origin)
            used = self._cut(plane, slice(0, self.rows), first, self.now + 1)
            new[: self.rows, :, first - self.start : self.now + 1 - self.start] = used.clone() if same else used
        return new


def moves(leaving: Sequence[int], rows: int) -> tuple[list[int], list[int]]:
    """Which of `rows` rows move where, so that those that stay are the first ones: (sources, holes).

    >>> moves([0, 3], 5)
    ([4], [0])
    """
    gone, left = set(leaving), rows - len(leaving)
    return [row for row in range(left, rows) if row not in gone], [row for row in sorted(gone) if row < left]
