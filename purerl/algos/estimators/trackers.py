"""Baselines that are remembered from batch to batch: tables with a number for each prompt, or each player.

A table is [places]; `key`, [rows] int64, says which place a row belongs to. The rows of a batch come all at once: their
order changes nothing. Rows that are not `counted` change nothing. With leading axes the table is [..., places].
"""

from __future__ import annotations

import torch
from torch import Tensor

from purerl.types import RowBool, RowFloat, RowInt

__all__ = ["beta_update", "look_up", "moving_average_update"]


def look_up(table: Tensor, key: RowInt) -> RowFloat:
    """What is at each row's place.

    >>> look_up(torch.tensor([0.5, 0.25]), torch.tensor([1, 1, 0]))
    tensor([0.2500, 0.2500, 0.5000])
    """
    return table.expand(*key.shape[:-1], -1).gather(-1, key)


def _totals(table: Tensor, x: RowFloat, key: RowInt, counted: RowBool) -> Tensor:
    """The sum of `x` over the counted rows of each place."""
    none = torch.zeros_like(table).expand(*key.shape[:-1], -1)
    return none.scatter_add(-1, key, torch.where(counted, x, 0).to(table.dtype))


def moving_average_update(table: Tensor, score: RowFloat, key: RowInt, counted: RowBool, *, decay: float) -> Tensor:
    """decay^n * b + (1 - decay^n) * mean of s, over the n rows of each place: an exponential moving average.

    It is what n updates b <- decay * b + (1 - decay) * s lead to, if the scores come at their mean.

    >>> yes, key = torch.tensor([True, True]), torch.tensor([1, 1])
    >>> moving_average_update(torch.zeros(2), torch.tensor([1.0, 0.0]), key, yes, decay=0.5)
    tensor([0.0000, 0.3750])
    """
    rows = _totals(table, torch.ones_like(score), key, counted)
    mean = _totals(table, score, key, counted) / rows.clamp(min=1)
    return decay**rows * table + (1 - decay**rows) * mean


def beta_update(
    alpha: Tensor, beta: Tensor, score: RowFloat, key: RowInt, counted: RowBool, *, decay: float
) -> tuple[Tensor, Tensor]:
    """(decay * alpha + sum of s, decay * beta + sum of (1 - s)): successes and failures, the older the less.

    alpha / (alpha + beta) estimates the rate of success, from about 1 / (1 - decay) rows. A place without a row in the
    batch stays as it is. Scores are clamped to [0, 1] first.

    >>> alpha = beta = torch.tensor([4.0, 4.0])
    >>> beta_update(alpha, beta, torch.tensor([1.0]), torch.tensor([1]), torch.tensor([True]), decay=0.5)
    (tensor([4., 3.]), tensor([4., 2.]))
    """
    success, rows = score.clamp(0, 1), _totals(alpha, torch.ones_like(score), key, counted)
    right, wrong = (_totals(alpha, x, key, counted) for x in (success, 1 - success))
    return torch.where(rows > 0, decay * alpha, alpha) + right, torch.where(rows > 0, decay * beta, beta) + wrong
