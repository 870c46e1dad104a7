"""Rows to ranks, micro-batches and packs: manual results and edge cases. The laws are in property_tests/."""

from __future__ import annotations

import pytest
import torch

from purerl.kernels.partition import assign_ranks, microbatches, packs, rank_microbatches, rank_packs, tokens_needed
from purerl.kernels.partition.ranks import longest_first

NO_ROWS = torch.zeros(0, dtype=torch.int64)


# --- micro-batches -----------------------------------------------------------------------------------------------


def test_rows_of_similar_length_share_a_microbatch():
    cost = torch.randint(1, 100, (200,), generator=torch.Generator().manual_seed(0))
    parts = microbatches(cost, torch.arange(200), cost, budget=1000)
    computed = sum(len(part) * int(cost[part].max()) for part in parts)
    assert computed < 1.1 * int(cost.sum())
    assert len(parts) < computed / 1000 + 5


def test_without_rows_there_is_one_empty_part():
    assert [part.tolist() for part in microbatches(NO_ROWS, NO_ROWS, NO_ROWS, budget=9)] == [[]]
    assert [part.tolist() for part in packs(NO_ROWS, NO_ROWS, budget=9)] == [[]]
    of_ranks = rank_packs(NO_ROWS, NO_ROWS, NO_ROWS, ranks=2, budget=9)
    assert [[part.tolist() for part in parts] for parts in of_ranks] == [[[]], [[]]]
    assert assign_ranks(NO_ROWS, NO_ROWS, ranks=2).tolist() == []


# --- ranks -------------------------------------------------------------------------------------------------------


def test_ranks_equal_manual_assignment():
    """Units in descending order of cost: 0 (9), 1 (4 + 4), 2 (5), 4 (3), 3 (2). Ties go to the lower rank."""
    cost, unit = torch.tensor([4, 9, 5, 2, 4, 3]), torch.tensor([1, 0, 2, 3, 1, 4])
    # totals: 9, 0 -> 9, 8 -> 9, 13 -> 12, 13 -> 14, 13
    assert assign_ranks(cost, unit, ranks=2).tolist() == [1, 0, 1, 0, 1, 0]
    assert assign_ranks(cost, unit, ranks=1).tolist() == [0] * 6


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ([8, 7, 6, 5, 4], [1, 0, 1, 0, 0]),  # totals 16 and 14 instead of 17 and 13
        ([800, 700, 600, 500, 400, *[1] * 400], None),  # small units fill the gap, so there is nothing to gain
    ],
)
def test_largest_differencing_is_used_where_it_saves_one_percent(costs, expected):
    result = assign_ranks(torch.tensor(costs), torch.arange(len(costs)), ranks=2).tolist()
    assert result == (expected or longest_first(costs, ranks=2))


def test_rows_without_tokens_are_distributed_too():
    assert assign_ranks(torch.zeros(4, dtype=torch.int64), torch.arange(4), ranks=2).tolist() == [0, 1, 0, 1]


def test_all_ranks_have_as_many_micro_batches_as_the_one_that_has_the_most():
    cost, group = torch.tensor([9, 2, 4, 3]), torch.tensor([7, 3, 3, 3])
    of_ranks = rank_microbatches(cost, torch.arange(4), group, cost, ranks=2, budget=6)
    assert [[part.tolist() for part in parts] for parts in of_ranks] == [[[0], []], [[2], [1, 3]]]
    whole = rank_microbatches(cost, group, group, cost, ranks=2, budget=6)
    assert [[part.tolist() for part in parts] for parts in whole] == [[[0]], [[1, 2, 3]]]


# --- packs -------------------------------------------------------------------------------------------------------


def test_a_unit_above_the_budget_has_a_pack_of_its_own():
    tokens, unit = torch.tensor([1, 7, 6, 5, 4]), torch.tensor([3, 0, 0, 1, 2])
    assert [part.tolist() for part in packs(tokens, unit, budget=10)] == [[1, 2], [0, 3, 4]]


def test_packs_of_ranks_are_balanced_and_as_few_as_possible():
    """Attention makes long rows more expensive than their tokens."""
    tokens = torch.randint(10, 1000, (300,), generator=torch.Generator().manual_seed(0))
    cost = tokens * (4000 + tokens)
    of_ranks = rank_packs(tokens, torch.arange(300), cost, ranks=4, budget=4096)
    number = len(of_ranks[0])
    assert number <= int(tokens.sum()) / (4 * 4096) + 1
    costs = torch.tensor([[int(cost[part].sum()) for part in parts] for parts in of_ranks])
    assert int(costs.amax(0).sum()) < 1.02 * int(cost.sum()) / 4  # the time, if all wait for the slowest in each pack
    assert max(int(tokens[part].sum()) for parts in of_ranks for part in parts) <= 4096


def test_few_rows_are_divided_over_all_ranks():
    """They would fit into one pack, and then one rank would do everything."""
    tokens = torch.tensor([4, 4, 4, 4])
    of_ranks = rank_packs(tokens, torch.arange(4), tokens, ranks=4, budget=1000)
    assert sorted(part.tolist() for parts in of_ranks for part in parts) == [[0], [1], [2], [3]]


# --- tokens ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("action", "expected"), [("......", 0), ("..a...", 2), ("..a.a.", 4), (".....a", 5)])
def test_tokens_from_the_last_action_token_on_are_not_needed(action, expected):
    assert tokens_needed(torch.tensor([[kind == "a" for kind in action]])).tolist() == [expected]
