"""Assignment of rows to ranks and to micro-batches."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from purerl.kernels.partition import assign_ranks, microbatches, tokens_needed

rows = st.lists(st.tuples(st.integers(0, 30), st.sampled_from([-(2**62), -1, 0, 7, 2**62])), max_size=30)


def columns(rows) -> tuple[torch.Tensor, torch.Tensor]:
    """The costs and the unit labels of `rows`."""
    cost, unit = (torch.tensor([row[k] for row in rows], dtype=torch.int64) for k in (0, 1))
    return cost, unit


# --- micro-batches -----------------------------------------------------------------------------------------------


@given(rows, st.integers(1, 100))
def test_every_row_is_in_one_microbatch_within_the_budget_and_units_are_not_split(rows, budget):
    cost, unit = columns(rows)
    parts = microbatches(cost, unit, budget=budget)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(rows)))
    assert len(parts) == 1 or all(len(part) for part in parts)
    labels = [set(unit[part].tolist()) for part in parts]
    assert sum(map(len, labels)) == len(set(unit.tolist()))
    for part, units in zip(parts, labels, strict=True):
        assert part.tolist() == sorted(part.tolist())
        assert len(units) <= 1 or len(part) * int(cost[part].clamp(min=1).max()) <= budget


def test_rows_of_similar_length_share_a_microbatch():
    cost = torch.randint(1, 100, (200,), generator=torch.Generator().manual_seed(0))
    parts = microbatches(cost, torch.arange(200), budget=1000)
    computed = sum(len(part) * int(cost[part].max()) for part in parts)
    assert computed < 1.1 * int(cost.sum())
    assert len(parts) < computed / 1000 + 5


# --- ranks -------------------------------------------------------------------------------------------------------


@given(rows, st.integers(1, 6))
def test_every_row_has_one_rank_and_units_are_not_split(rows, ranks):
    cost, unit = columns(rows)
    rank_of_row = assign_ranks(cost, unit, ranks=ranks)
    assert rank_of_row.dtype == torch.int64
    assert all(0 <= rank < ranks for rank in rank_of_row.tolist())
    pairs = set(zip(unit.tolist(), rank_of_row.tolist(), strict=True))
    assert len(pairs) == len(set(unit.tolist()))


@given(rows, st.integers(1, 6))
def test_totals_of_ranks_differ_by_at_most_one_unit(rows, ranks):
    cost, unit = columns(rows)
    rank_of_row, cost = assign_ranks(cost, unit, ranks=ranks), cost.clamp(min=1)
    totals = [int(cost[rank_of_row == rank].sum()) for rank in range(ranks)]
    largest = max((int(cost[unit == label].sum()) for label in unit.unique()), default=0)
    assert max(totals) - min(totals) <= largest


@given(rows, st.integers(1, 6))
def test_ranks_have_rows_if_there_are_enough_units(rows, ranks):
    cost, unit = columns(rows)
    assert len(assign_ranks(cost, unit, ranks=ranks).unique()) == min(ranks, len(unit.unique()))


def test_ranks_equal_manual_assignment():
    """Units in descending order of cost: 0 (9), 1 (4 + 4), 2 (5), 4 (3), 3 (2). Ties go to the lower rank."""
    cost, unit = torch.tensor([4, 9, 5, 2, 4, 3]), torch.tensor([1, 0, 2, 3, 1, 4])
    # totals: 9, 0 -> 9, 8 -> 9, 13 -> 12, 13 -> 14, 13
    assert assign_ranks(cost, unit, ranks=2).tolist() == [1, 0, 1, 0, 1, 0]
    assert assign_ranks(cost, unit, ranks=1).tolist() == [0] * 6


def test_rows_without_tokens_are_distributed_too():
    assert assign_ranks(torch.zeros(4, dtype=torch.int64), torch.arange(4), ranks=2).tolist() == [0, 1, 0, 1]


# --- tokens ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("action", "expected"), [("......", 0), ("..a...", 2), ("..a.a.", 4), (".....a", 5)])
def test_tokens_from_the_last_action_token_on_are_not_needed(action, expected):
    assert tokens_needed(torch.tensor([[kind == "a" for kind in action]])).tolist() == [expected]
