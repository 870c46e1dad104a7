"""`Table`, compared with lists of numbers."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from purerl.backends.hf.sampling.table import Table, compaction_moves

MAX_ROWS = 6
LIKE = torch.zeros(1, 2, 1, 3)


class TableMachine(RuleBasedStateMachine):
    """A table with two planes, one of which is added late, beside a list (first column, numbers up to now) per row."""

    def __init__(self):
        super().__init__()
        self.rows: list[tuple[int, list[float]]] = []
        self.table, self.now, self.names, self.numbers = Table(MAX_ROWS), 0, ["early"], itertools.count(1)
        self.table.add_plane("early", LIKE)

    def write(self, rows, start, values):
        values = torch.tensor(values, dtype=torch.float32)[:, None, :, None].expand(-1, 2, -1, 3)
        for name in self.names:
            self.table.view(name, rows, start, start + values.shape[2]).copy_(values)

    @precondition(lambda self: len(self.rows) < MAX_ROWS)
    @rule(data=st.data())
    def add_rows(self, data):
        lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=MAX_ROWS - len(self.rows)))
        added = self.table.add_rows(len(lengths), before=max(lengths) - 1)
        assert range(*added.indices(MAX_ROWS)) == range(len(self.rows), len(self.rows) + len(lengths))
        self.write(added, self.now + 1 - max(lengths), [[0.0] * max(lengths)] * len(lengths))
        for row, length in enumerate(lengths, start=added.start):
            numbers = [float(next(self.numbers)) for _ in range(length)]
            self.rows.append((self.now + 1 - length, numbers))
            self.write(slice(row, row + 1), self.now + 1 - length, [numbers])

    @precondition(lambda self: self.rows)
    @rule()
    def add_column(self):
        self.table.add_column()
        self.now += 1
        new = [[float(next(self.numbers))] for _ in self.rows]
        for (_, numbers), number in zip(self.rows, new, strict=True):
            numbers.extend(number)
        self.write(slice(0, len(self.rows)), self.now, new)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def remove_rows(self, data):
        removed = data.draw(st.sets(st.integers(0, len(self.rows) - 1), min_size=1))
        sources, holes = compaction_moves(list(removed), len(self.rows))
        for source, hole in zip(sources, holes, strict=True):
            self.rows[hole] = self.rows[source]
        self.rows = self.rows[: len(self.rows) - len(removed)]
        start = min((first for first, _ in self.rows), default=self.now)
        self.table.remove_rows(sources, holes, rows=len(self.rows), start=start)

    @rule()
    def release(self):
        """Has no effect if rows are in use."""
        self.table.release()
        assert self.rows or not any(plane.numel() for plane in self.table._planes.values())

    @precondition(lambda self: not self.rows and len(self.names) == 1)
    @rule()
    def add_plane(self):
        self.names.append("late")
        self.table.add_plane("late", LIKE)

    @precondition(lambda self: self.rows)
    @invariant()
    def table_has_the_written_numbers_after_zeros(self):
        assert (self.table.rows, self.table.now) == (len(self.rows), self.now)
        start = self.table.start
        expected = torch.tensor([[0.0] * (first - start) + numbers for first, numbers in self.rows])
        for name in self.names:
            values = self.table.view(name, slice(0, len(self.rows)), start, self.now + 1)
            assert torch.equal(values, expected[:, None, :, None].expand(-1, 2, -1, 3))

    @invariant()
    def stored_columns_that_are_not_in_use_are_0(self):
        for name in self.names:
            plane, used = self.table._planes[name][: len(self.rows)], self.table.start - self.table._origin
            assert (plane[:, :, : max(used, 0)] == 0).all()
            assert (plane[:, :, used + self.now + 1 - self.table.start :] == 0).all()


TestTableMachine = TableMachine.TestCase
TestTableMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_new_rows_are_0_where_earlier_rows_were_nan():
    table = Table(4)
    table.add_plane("plane", torch.zeros(1, 1, 1, 1))
    table.add_rows(3, before=5)
    table.view("plane", slice(0, 3), -5, 1).fill_(torch.nan)
    table.remove_rows([], [], rows=1, start=-1)
    table.view("plane", slice(0, 1), -1, 1).fill_(7.0)
    added = table.add_rows(2, before=3)  # wider than the row in use
    table.view("plane", added, -3, 0).fill_(1.0)
    added = table.add_rows(1, before=1)  # not as wide
    table.view("plane", added, -1, 0).fill_(1.0)
    values = table.view("plane", slice(0, 4), table.start, table.now)[:, 0, :, 0]
    assert values.tolist() == [[0, 0, 7.0], [1.0] * 3, [1.0] * 3, [0, 0, 1.0]]


def test_stored_columns_that_are_not_in_use_are_0_in_new_memory(monkeypatch):
    """A decoding step may read them, and 0 times NaN is NaN."""
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda like, *size: like.new_full(size, torch.nan))
    table = Table(4)
    table.add_plane("plane", torch.zeros(1, 1, 1, 1))
    for rows in (1, 2):
        table.view("plane", table.add_rows(rows, before=2), table.now - 2, table.now).fill_(1.0)
        for _ in range(9):
            table.view("plane", slice(0, table.rows), table.now, table.now + 1).fill_(1.0)
            assert not table._planes["plane"][: table.rows].isnan().any()
            table.add_column()


def test_row_that_moves_leaves_all_values_of_the_row_before_it():
    table = Table(2)
    table.add_plane("plane", torch.zeros(1, 1, 1, 1))
    table.view("plane", table.add_rows(2, before=3), -3, 1).copy_(torch.tensor([torch.nan, 1.0])[:, None, None, None])
    table.remove_rows([1], [0], rows=1, start=-1)
    assert not table._planes["plane"][:1].isnan().any()


def test_plane_added_to_rows_in_use_is_0():
    """Prompts of one token need no prefill. The first prefill creates the planes, for all rows."""
    table = Table(4)
    table.add_rows(2, before=0)
    table.add_rows(1, before=5)
    table.add_plane("plane", torch.full((1, 1, 1, 1), torch.nan))
    assert (table.view("plane", slice(0, 3), table.start, table.now + 1) == 0).all()


def test_planes_grow_one_after_the_other(monkeypatch):
    """If all planes grew together, the memory for all of them would be needed twice."""
    table, rows = Table(9), []
    for name in "abc":
        table.add_plane(name, LIKE)
    table.add_rows(1, before=0)
    resized = Table._resized
    monkeypatch.setattr(
        Table,
        "_resized",
        lambda *args: (rows.append([len(each) for each in table._planes.values()]), resized(*args))[1],
    )
    table.add_rows(8, before=0)
    assert rows == [[1, 1, 1], [9, 1, 1], [9, 9, 1]]


def test_longer_rows_are_added_without_moving_the_window(monkeypatch):
    """The window has free columns on both sides, because rows that return after a turn are longer."""
    table = Table(9)
    table.add_plane("a", LIKE)
    table.add_rows(9, before=16)
    for _ in range(20):
        table.add_column()
    table.remove_rows([], [], rows=8, start=table.start)
    monkeypatch.setattr(Table, "_resized", None)
    table.add_rows(1, before=42)
    assert table.now - table.start == 42


@settings(deadline=None)
@given(st.integers(1, 12), st.data())
def test_moves_keep_the_remaining_rows(rows, data):
    removed = data.draw(st.sets(st.integers(0, rows - 1)))
    names = list(range(rows))
    for source, hole in zip(*compaction_moves(list(removed), rows), strict=True):
        names[hole] = names[source]
    assert sorted(names[: rows - len(removed)]) == sorted(set(range(rows)) - removed)


def test_memory_stays_small_during_many_short_rows():
    """Column numbers grow; the tensors do not."""
    table = Table(2)
    table.add_plane("plane", torch.zeros(1, 1, 1, 1))
    for _ in range(200):
        table.add_rows(1, before=3)
        for _ in range(5):
            table.add_column()
        table.remove_rows([], [], rows=0, start=table.now)
    assert table.now == 1000
    assert table._planes["plane"].numel() <= 2 * 2 * (3 + 5 + 2)
