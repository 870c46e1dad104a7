"""The table against a plain one: lists of numbers, with columns that begin anywhere."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from purerl.backends.hf.table import Table, moves

MOST = 6
LIKE = torch.zeros(1, 2, 1, 3)


class AgainstLists(RuleBasedStateMachine):
    """Rows as lists, each from its first column to now, and a table with two planes, one of which comes late."""

    def __init__(self):
        super().__init__()
        self.rows: list[tuple[int, list[float]]] = []
        self.table, self.now, self.names, self.numbers = Table(MOST), 0, ["early"], itertools.count(1)
        self.table.add("early", LIKE)

    def write(self, rows, start, values):
        values = torch.tensor(values, dtype=torch.float32)[:, None, :, None].expand(-1, 2, -1, 3)
        for name in self.names:
            self.table.view(name, rows, start, start + values.shape[2]).copy_(values)

    @precondition(lambda self: len(self.rows) < MOST)
    @rule(data=st.data())
    def enter(self, data):
        lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=MOST - len(self.rows)))
        entered = self.table.enter(len(lengths), before=max(lengths) - 1)
        assert range(*entered.indices(MOST)) == range(len(self.rows), len(self.rows) + len(lengths))
        for row, length in enumerate(lengths, start=entered.start):
            numbers = [float(next(self.numbers)) for _ in range(length)]
            self.rows.append((self.now + 1 - length, numbers))
            self.write(slice(row, row + 1), self.now + 1 - length, [numbers])

    @precondition(lambda self: self.rows)
    @rule()
    def step(self):
        self.table.step()
        self.now += 1
        new = [[float(next(self.numbers))] for _ in self.rows]
        for row, one in zip(self.rows, new, strict=True):
            row[1].extend(one)
        self.write(slice(0, len(self.rows)), self.now, new)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def leave(self, data):
        gone = data.draw(st.sets(st.integers(0, len(self.rows) - 1), min_size=1))
        sources, holes = moves(list(gone), len(self.rows))
        for source, hole in zip(sources, holes, strict=True):
            self.rows[hole] = self.rows[source]
        self.rows = self.rows[: len(self.rows) - len(gone)]
        start = min((first for first, _ in self.rows), default=self.now)
        self.table.leave(sources, holes, rows=len(self.rows), start=start)

    @rule()
    def give_back(self):
        """Of which rows in use know nothing."""
        self.table.give_back()
        assert self.rows or not any(plane.numel() for plane in self.table._planes.values())

    @precondition(lambda self: not self.rows and len(self.names) == 1)
    @rule()
    def a_plane_comes_late(self):
        self.names.append("late")
        self.table.add("late", LIKE)

    @precondition(lambda self: self.rows)
    @invariant()
    def it_holds_what_was_written_and_0_before(self):
        assert (self.table.rows, self.table.now) == (len(self.rows), self.now)
        start = self.table.start
        wanted = torch.tensor([[0.0] * (first - start) + numbers for first, numbers in self.rows])
        for name in self.names:
            found = self.table.view(name, slice(0, len(self.rows)), start, self.now + 1)
            assert torch.equal(found, wanted[:, None, :, None].expand(-1, 2, -1, 3))


TestAgainstLists = AgainstLists.TestCase
TestAgainstLists.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_entering_rows_are_0_whatever_was_there():
    table = Table(4)
    table.add("plane", torch.zeros(1, 1, 1, 1))
    table.enter(3, before=5)
    table.view("plane", slice(0, 3), -5, 1).fill_(torch.nan)
    table.leave([], [], rows=1, start=0)
    table.view("plane", slice(0, 1), 0, 1).fill_(7.0)
    table.enter(2, before=3)
    found = table.view("plane", slice(0, 3), table.start, table.now + 1)[:, 0, :, 0]
    assert found.tolist() == [[0, 0, 0, 7.0], [0, 0, 0, 0], [0, 0, 0, 0]]


def test_a_plane_that_comes_late_is_0():
    """Prompts of one token go through no prefill: the first that does makes the planes, for all rows."""
    table = Table(4)
    table.enter(2, before=0)
    table.enter(1, before=5)
    table.add("plane", torch.full((1, 1, 1, 1), torch.nan))
    assert (table.view("plane", slice(0, 3), table.start, table.now + 1) == 0).all()


def test_planes_grow_one_after_the_other(monkeypatch):
    """What two would take at once beside the old ones is not there to take."""
    table, rows = Table(9), []
    for name in "abc":
        table.add(name, LIKE)
    table.enter(1, before=0)
    true = Table._laid_out
    monkeypatch.setattr(
        Table,
        "_laid_out",
        lambda table, plane: (rows.append([len(one) for one in table._planes.values()]), true(table, plane))[1],
    )
    table.enter(8, before=0)
    assert rows == [[1, 1, 1], [9, 1, 1], [9, 9, 1]]


@given(st.integers(1, 12), st.data())
def test_moves_keep_those_that_stay(rows, data):
    gone = data.draw(st.sets(st.integers(0, rows - 1)))
    names = list(range(rows))
    for source, hole in zip(*moves(list(gone), rows), strict=True):
        names[hole] = names[source]
    assert sorted(names[: rows - len(gone)]) == sorted(set(range(rows)) - gone)


def test_a_long_run_of_short_rows_stays_small():
    """Columns are numbered for ever; the tensors are not."""
    table = Table(2)
    table.add("plane", torch.zeros(1, 1, 1, 1))
    for _ in range(200):
        table.enter(1, before=3)
        for _ in range(5):
            table.step()
        table.leave([], [], rows=0, start=table.now)
    assert table.now == 1000
    assert table._planes["plane"].numel() <= 2 * 2 * (3 + 5 + 2)
