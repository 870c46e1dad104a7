"""Baselines that persist from batch to batch: tables with one value per prompt or per player.

A table is [entries]. `key`, int64 [rows], is the index of each row's entry. All rows of a batch update the table in one
call, and their order does not matter. Rows that are not `counted` have no effect. With leading axes, a table is [...,
entries].
"""

from __future__ import annotations

import torch
from torch import Tensor

from purerl.types import RowBool, RowFloat, RowInt

__all__ = ["table_lookup", "update_beta_counts", "update_moving_average"]


def table_lookup(table: Tensor, key: RowInt) -> RowFloat:
    """Return the value of each row's entry.

    Shapes: `table` is [entries], `key` and the result are [rows].

    >>> table_lookup(torch.tensor([0.5, 0.25]), torch.tensor([1, 1, 0]))
    tensor([0.2500, 0.2500, 0.5000])
    """
    return table.expand(*key.shape[:-1], -1).gather(-1, key)


def _sum_by_entry(table: Tensor, x: RowFloat, key: RowInt, counted: RowBool) -> Tensor:
    """Sum `x` over the counted rows of each entry of `table`."""
    zeros = torch.zeros_like(table).expand(*key.shape[:-1], -1)
    return zeros.scatter_add(-1, key, torch.where(counted, x, 0).to(table.dtype))


def update_moving_average(table: Tensor, score: RowFloat, key: RowInt, counted: RowBool, *, decay: float) -> Tensor:
    """Update an exponential moving average of the scores of each entry.

        b <- decay^n * b + (1 - decay^n) mean(s)

    The n counted rows of an entry have the same effect as n updates b <- decay * b + (1 - decay) * s with their mean
    score. Shapes: `table` and the result are [entries], the others are [rows]; scores in units of reward.

    >>> counted, key = torch.tensor([True, True]), torch.tensor([1, 1])
    >>> update_moving_average(torch.zeros(2), torch.tensor([1.0, 0.0]), key, counted, decay=0.5)
    tensor([0.0000, 0.3750])
    """
    rows = _sum_by_entry(table, torch.ones_like(score), key, counted)
    mean = _sum_by_entry(table, score, key, counted) / rows.clamp(min=1)
    return decay**rows * table + (1 - decay**rows) * mean


def update_beta_counts(
    alpha: Tensor, beta: Tensor, score: RowFloat, key: RowInt, counted: RowBool, *, decay: float
) -> tuple[Tensor, Tensor]:
    """Update the decayed counts of successes and failures of each entry.

        alpha <- decay * alpha + sum_j s_j
        beta  <- decay * beta + sum_j (1 - s_j)

    alpha / (alpha + beta) estimates the success rate from about 1 / (1 - decay) rows. The sums are over the counted
    rows of an entry; without any, the entry does not change. Scores are clamped to [0, 1] first. Shapes: `alpha`,
    `beta` and the results are [entries], the others are [rows].

    >>> alpha = beta = torch.tensor([4.0, 4.0])
    >>> update_beta_counts(alpha, beta, torch.tensor([1.0]), torch.tensor([1]), torch.tensor([True]), decay=0.5)
    (tensor([4., 3.]), tensor([4., 2.]))
    """
    success, rows = score.clamp(0, 1), _sum_by_entry(alpha, torch.ones_like(score), key, counted)
    successes, failures = (_sum_by_entry(alpha, x, key, counted) for x in (success, 1 - success))
    has_rows = rows > 0
    return torch.where(has_rows, decay * alpha, alpha) + successes, torch.where(has_rows, decay * beta, beta) + failures
