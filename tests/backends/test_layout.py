"""Micro-batches of several ranks, computed in one process."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purerl.backends.hf.training.layout import arrange, arrange_packs
from purerl.backends.training import Budget
from purerl.batch import with_fields
from purerl.ranks import Ranks
from purerl.testing.batches import example_batch, layouts


def arrange_all(batch, *, ranks, unit="row", budget=12, share=False):
    options = {"unit": unit, "budget": Budget(budget), "share": share}
    return [arrange(batch, **options, ranks=Ranks(rank, ranks)) for rank in range(ranks)]


@settings(deadline=None)
@given(layouts(), st.integers(1, 4), st.sampled_from(["row", "group"]), st.booleans())
def test_every_row_is_in_one_microbatch_of_one_rank(layout, ranks, unit, share):
    batch = example_batch(["temperature"], layout)
    parts_of_ranks = arrange_all(batch, ranks=ranks, unit=unit, share=share)
    rows = [row for parts in parts_of_ranks for part in parts for row in part.rows.tolist()]
    assert sorted(rows) == list(range(len(batch)))
    assert len({len(parts) for parts in parts_of_ranks}) == 1


@settings(deadline=None)
@given(layouts(), st.integers(1, 4))
def test_groups_are_not_split_if_the_unit_is_a_group(layout, ranks):
    batch = example_batch(["temperature"], layout)
    parts = [part for parts in arrange_all(batch, ranks=ranks, unit="group") for part in parts]
    labels = [label for part in parts for label in batch["group"][part.rows].unique().tolist()]
    assert len(labels) == len(set(labels))


@pytest.mark.parametrize("unit", ["row", "group"])
@pytest.mark.parametrize("packs", [False, True])
def test_budget_in_rows_counts_rows_of_any_length(packs, unit):
    batch = example_batch(["temperature"], [(row // 2, "." * row + "a") for row in range(1, 12)])
    options = {"unit": unit, "budget": Budget(4, "rows"), "ranks": Ranks(0, 1)}
    parts = arrange_packs(batch, **options) if packs else arrange(batch, **options, share=False)
    assert sorted(len(part.rows) for part in parts) == [3, 4, 4]
    assert sorted(row for part in parts for row in part.rows.tolist()) == [*range(11)]
    wide = Budget(11 * 12)
    assert len(arrange_packs(batch, unit=unit, budget=wide, ranks=Ranks(0, 1))) == 1, "in tokens all of them fit"


def prefix_batch():
    """A group of four rows with a long common prompt, and four groups of one row."""
    layout = (*[(1, "." * 14 + "aa")] * 4, *[(label, "." * 14 + "aa") for label in (2, 3, 4, 5)])
    batch = example_batch(["temperature"], layout)
    tokens = torch.arange(batch["tokens"].numel()).reshape(batch["tokens"].shape)
    tokens[:4, :14] = tokens[0, :14]
    return with_fields(batch, tokens=tokens)


def test_all_ranks_run_the_same_number_of_forward_passes():
    """The rank without a common prefix uses two forward passes too, because they are collective if sharded."""
    batch = prefix_batch()
    (shared, *_), (separate, *_) = arrange_all(batch, ranks=2, budget=1000, share=True)
    assert batch["group"][shared.rows].unique().tolist() == [1]
    assert shared.prefixes.prefixes.shape == (1, 14)
    assert batch["group"][separate.rows].tolist() == [2, 3, 4, 5]
    assert separate.prefixes.prefixes.shape == (4, 14)
    for part, *_ in arrange_all(batch, ranks=2, budget=1000):
        assert part.prefixes is None


@pytest.mark.parametrize(("ranks", "expected"), [(2, [4, 4]), (6, [1, 1, 1, 1, 2, 2])])
def test_groups_with_prefixes_stay_on_one_rank_if_there_are_enough_groups(ranks, expected):
    parts_of_ranks = arrange_all(prefix_batch(), ranks=ranks, budget=1000, share=True)
    assert sorted(sum(len(part.rows) for part in parts) for parts in parts_of_ranks) == expected
