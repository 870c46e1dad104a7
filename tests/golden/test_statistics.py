"""From tokens to numbers: reductions, statistics of groups and of batches."""

from __future__ import annotations

import math

import pytest
import torch

from purerl.algos import (
    Counts,
    broadcast_to_tokens,
    constant_norm,
    group_deviation,
    group_max,
    group_mean,
    group_size,
    group_sum,
    group_token_max,
    group_token_sum,
    sequence_mean_of_token_mean,
    sequence_mean_of_token_sum,
    token_mean,
    token_sum,
    whiten,
    whiten_rows,
)
from purerl.algos.parts.groups import group_index
from purerl.algos.parts.rows import first_counted, row_mean
from purerl.algos.parts.whiten import center, standard_deviation
from tests.golden.hand import close, f64, ints, slope, where

LOSS = f64([2.0, 4.0, math.nan], [6.0, math.nan, math.nan])
MASK = LOSS.isfinite()


@pytest.mark.parametrize(
    ("reduce", "expected"),
    [
        (token_sum, 12.0),
        (token_mean, 12 / 5),  # of a step with 5 tokens in 3 rows, of which these are some
        (sequence_mean_of_token_mean, (3 + 6) / 3),
        (sequence_mean_of_token_sum, 12 / 3),
        (lambda *of: constant_norm(*of, length=8.0), 12 / 24),
    ],
)
def test_reductions_by_hand(reduce, expected):
    counts = Counts(torch.tensor(5), torch.tensor(3))
    torch.testing.assert_close(reduce(LOSS, MASK, counts), f64(expected)[0])
    none = Counts(torch.tensor(0), torch.tensor(0))
    nothing = slope(lambda x: reduce(x, torch.zeros_like(MASK), none), torch.ones(2, 3))
    assert not nothing.any()


@pytest.mark.parametrize("function", [group_sum, group_max])
def test_every_row_gets_what_its_group_has(function):
    found = function(torch.tensor([1.0, 2.0, 4.0, -8.0]), torch.tensor([5, -9, 5, 5]))
    assert found.tolist() == {group_sum: [-3.0, 2.0, -3.0, -3.0], group_max: [4.0, 2.0, 4.0, 4.0]}[function]


GROUP = ints(5, -9, 5, 5)


def test_groups_are_numbered_by_their_labels():
    assert group_index(ints(7, -3, 7, 100)).tolist() == [1, 0, 1, 2]
    close(group_size(where("xx.x")[0], GROUP, dtype=torch.float64), 2, 1, 2, 2)
    close(group_deviation(f64(3, 1, 99, 9), GROUP, where("xx.x")[0]), -3, 0, 0, 3)
    close(group_mean(f64(3, 1, 99, 9), GROUP, where("xx.x")[0]), 6, 1, 6, 6)
    close(group_token_max(f64([1, 40], [2, 20], [4, 10], [0, 0]), GROUP), [4, 40], [2, 20], [4, 40], [4, 40])
    close(group_token_sum(f64([1, 10], [2, 20], [4, 40], [0, 0]), GROUP), [5, 50], [2, 20], [5, 50], [5, 50])


def test_of_rows():
    x, mask = f64([9, 1, 3, 9], [7, 9, 5, 5]), where(".xx.", "....")
    close(row_mean(x, mask), 2, 0)
    close(first_counted(x, mask), 1, 0)
    close(broadcast_to_tokens(f64(4, 5), mask), [0, 4, 4, 0], [0, 0, 0, 0])


def test_of_the_batch():
    """1, 2 and 6 have the mean 3 and the deviations -2, -1, 3: their squares sum to 14, and 14 / 2 is the variance."""
    x, mask, root = f64([1, 2], [6, 99]), where("xx", "x."), math.sqrt(7)
    close(center(x, mask), [-2, -1], [3, 0])
    close(standard_deviation(x, mask)[None], root)
    close(whiten(x, mask), [-2 / root, -1 / root], [3 / root, 0], digits=1e-7)
    close(whiten_rows(f64(1, 2, 6, 99), where("xxx.")[0]), -2 / root, -1 / root, 3 / root, 0, digits=1e-7)
