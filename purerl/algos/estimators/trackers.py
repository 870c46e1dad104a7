"""Statistics that persist from batch to batch: tables with one value per prompt or per player, and moments of scores.

A table is [entries]. `key`, int64 [rows], is the index of each row's entry. All rows of a batch update the table in one
call, and their order does not matter. Rows that are not `counted` have no effect. With leading axes, a table is [...,
entries].
"""

from __future__ import annotations

import torch

from purerl.kernels.masks import masked
from purerl.types import RowBool, RowFloat, RowInt, Scalar

__all__ = ["sum_by_entry", "table_lookup", "update_beta_counts", "update_moments", "update_moving_average"]


def table_lookup(table: torch.Tensor, key: RowInt) -> RowFloat:
    """Return the value of each row's entry.

    Shapes: `table` is [entries], `key` and the result are [rows].

    >>> table_lookup(torch.tensor([0.5, 0.25]), torch.tensor([1, 1, 0]))
    tensor([0.2500, 0.2500, 0.5000])
    """
    return table.expand(*key.shape[:-1], -1).gather(-1, key)


def sum_by_entry(table: torch.Tensor, x: RowFloat, key: RowInt, counted: RowBool) -> torch.Tensor:
    """Sum `x` over the counted rows of each entry of `table`, whose values are not used.

    Shapes: `table` and the result are [entries], the others are [rows]. The result has the dtype of `table`.

    >>> counted, key = torch.tensor([True, True, False]), torch.tensor([1, 1, 0])
    >>> sum_by_entry(torch.zeros(2), torch.tensor([1.0, 2.0, 4.0]), key, counted)
    tensor([0., 3.])
    """
    zeros = torch.zeros_like(table).expand(*key.shape[:-1], -1)
    return zeros.scatter_add(-1, key, masked(x, counted).to(table.dtype))


def update_moving_average(
    table: torch.Tensor, score: RowFloat, key: RowInt, counted: RowBool, *, decay: float
) -> torch.Tensor:
    """Update an exponential moving average of the scores of each entry.

        b <- decay^n * b + (1 - decay^n) mean(s)

    The n counted rows of an entry have the same effect as n updates b <- decay * b + (1 - decay) * s with their mean
    score. Shapes: `table` and the result are [entries], the others are [rows]; scores in units of reward.

    >>> counted, key = torch.tensor([True, True]), torch.tensor([1, 1])
    >>> update_moving_average(torch.zeros(2), torch.tensor([1.0, 0.0]), key, counted, decay=0.5)
    tensor([0.0000, 0.3750])
    """
    rows = sum_by_entry(table, torch.ones_like(score), key, counted)
    mean = sum_by_entry(table, score, key, counted) / rows.clamp(min=1)
    return decay**rows * table + (1 - decay**rows) * mean


def update_beta_counts(
    alpha: torch.Tensor, beta: torch.Tensor, score: RowFloat, key: RowInt, counted: RowBool, *, decay: float
) -> tuple[torch.Tensor, torch.Tensor]:
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
    success, rows = score.clamp(0, 1), sum_by_entry(alpha, torch.ones_like(score), key, counted)
    successes, failures = (sum_by_entry(alpha, x, key, counted) for x in (success, 1 - success))
    has_rows = rows > 0
    return torch.where(has_rows, decay * alpha, alpha) + successes, torch.where(has_rows, decay * beta, beta) + failures


def update_moments(
    count: Scalar, mean: Scalar, squares: Scalar, score: RowFloat, counted: RowBool
) -> tuple[Scalar, Scalar, Scalar]:
    """Update the number of scores, their mean and the sum of their squared deviations, by the counted rows of a batch.

        squares <- squares + sum_i (s_i - m)^2 + count n / (count + n) (m - mean)^2
        mean    <- mean + n / (count + n) (m - mean)
        count   <- count + n

    n is the number of counted rows, and m their mean score. Without counted rows nothing changes. The results are those
    of all scores in one batch. Shapes: `score` and `counted` are [rows], the others are scalars.
    Source: Chan et al. 1983.

    >>> zero, counted = torch.tensor(0.0), torch.tensor([True, True])
    >>> moments = update_moments(zero, zero, zero, torch.tensor([1.0, 3.0]), counted)
    >>> update_moments(*moments, torch.tensor([5.0, 7.0]), counted)
    (tensor(4.), tensor(4.), tensor(20.))
    """
    rows = counted.sum(-1).to(score.dtype)
    batch_mean = masked(score, counted).sum(-1) / rows.clamp(min=1)
    batch_squares = masked(score - batch_mean.unsqueeze(-1), counted).square().sum(-1)
    total, distance = count + rows, batch_mean - mean
    share = rows / total.clamp(min=1)
    return total, mean + share * distance, squares + batch_squares + count * share * distance.square()
