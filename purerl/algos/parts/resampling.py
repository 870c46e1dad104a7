"""Resampling of rows with replacement: rows that tell more are learned from more often.

A row is not copied; it is given the number of its copies, for a loss to multiply. So shapes stay static, and rows keep
their names. `score`, `noise` and `counted` are [rows].
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from purerl.types import RowBool, RowFloat

__all__ = ["best_weight", "extreme_weight", "power_weight", "resample"]

LEAST_WEIGHT = 1e-8
"""Added to a weight, so that there is something to draw where every score is 0."""

_BEST, _OTHER = 0.4, 0.1


def power_weight(score: RowFloat, *, power: float) -> RowFloat:
    """abs(s_i)^power + 1e-8: verl's "pow".

    >>> power_weight(torch.tensor([2.0, -1.0]), power=2.0)
    tensor([4., 1.])
    """
    return score.abs() ** power + LEAST_WEIGHT


def extreme_weight(score: RowFloat, counted: RowBool) -> RowFloat:
    """1 where the score is the highest or the lowest of the batch, else 0: verl's "max_min".

    >>> extreme_weight(torch.tensor([2.0, 1.0, 0.0]), torch.tensor([True, True, True]))
    tensor([1., 0., 1.])
    """
    return (_is_highest(score, counted) | _is_highest(-score, counted)).to(score.dtype)


def best_weight(score: RowFloat, counted: RowBool) -> RowFloat:
    """0.4 where the score is the highest of the batch, else 0.1: verl's "max_random".

    >>> best_weight(torch.tensor([2.0, 1.0]), torch.tensor([True, True]))
    tensor([0.4000, 0.1000])
    """
    return torch.full_like(score, _OTHER).masked_fill(_is_highest(score, counted), _BEST)


def _is_highest(score: RowFloat, counted: RowBool) -> RowBool:
    known = torch.where(counted, score, -torch.inf)
    # One more, lest there be no row: the largest of nothing is refused.
    return counted & (score == pad(known, (0, 1), value=-torch.inf).amax(-1, keepdim=True))


def resample(weight: RowFloat, noise: RowFloat, counted: RowBool) -> RowFloat:
    """How often each row is drawn, when as many rows as are counted are drawn by `weight`, with replacement.

    Each counted row brings one number of `noise`, uniform in [0, 1), which draws the row in whose part of the sum of
    weights it falls. Rows are laid out in the order of their noise: which numbers there are says nothing about whose is
    the smallest, so the draws are independent of it; and the order of the batch changes nothing. Rows that are not
    counted bring none and get 0.

    >>> weight, noise = torch.tensor([3.0, 1.0, 9.0]), torch.tensor([0.1, 0.7, 0.0])
    >>> resample(weight, noise, torch.tensor([True, True, False]))
    tensor([2., 0., 0.])
    """
    order = torch.where(counted, noise, -1).argsort(dim=-1, stable=True)
    drawing, uniform = counted.gather(-1, order), noise.gather(-1, order)
    below = torch.where(drawing, weight.gather(-1, order), 0).cumsum(-1)
    place = (below.unsqueeze(-2) <= (uniform * below[..., -1:]).unsqueeze(-1)).sum(-1).clamp(max=weight.shape[-1] - 1)
    drawn = torch.zeros_like(weight).scatter_add(-1, place, drawing.to(weight.dtype))
    return torch.zeros_like(weight).scatter(-1, order, drawn)
