"""Resampling of rows with replacement, in proportion to a weight.

A row is not copied. It gets its number of copies, which a loss multiplies. Shapes are therefore static. `score`,
`noise`, `counted` and all results are [rows].
"""

from __future__ import annotations

import torch

from purerl.kernels.masks import as_mask, masked
from purerl.types import RowBool, RowFloat

__all__ = ["best_weight", "extreme_weight", "power_weight", "resample"]

MIN_WEIGHT = 1e-8
"""Added to a weight, so that rows can be drawn even if every score is 0."""

_HIGHEST_WEIGHT, _OTHER_WEIGHT = 0.4, 0.1


def power_weight(score: RowFloat, *, power: float) -> RowFloat:
    """Compute the weight "pow" of verl's PF-PPO.

        w_i = abs(s_i)^power + 1e-8

    Shapes: [rows] each. Source: verl.

    >>> power_weight(torch.tensor([2.0, -1.0]), power=2.0)
    tensor([4., 1.])
    """
    return score.abs() ** power + MIN_WEIGHT


def extreme_weight(score: RowFloat, counted: RowBool) -> RowFloat:
    """Compute the weight "max_min" of verl's PF-PPO.

        w_i = 1    if s_i is the maximum or the minimum of the batch
              0    else

    Only counted rows are compared; the others get 0. Shapes: [rows] each. Source: verl.

    >>> extreme_weight(torch.tensor([2.0, 1.0, 0.0]), torch.tensor([True, True, True]))
    tensor([1., 0., 1.])
    """
    return (_is_highest(score, counted) | _is_highest(-score, counted)).to(score.dtype)


def best_weight(score: RowFloat, counted: RowBool) -> RowFloat:
    """Compute the weight "max_random" of verl's PF-PPO.

        w_i = 0.4    if s_i is the maximum of the batch
              0.1    else

    Only counted rows are compared; the others get 0.1. Shapes: [rows] each. Source: verl.

    >>> best_weight(torch.tensor([2.0, 1.0]), torch.tensor([True, True]))
    tensor([0.4000, 0.1000])
    """
    return torch.full_like(score, _OTHER_WEIGHT).masked_fill(_is_highest(score, counted), _HIGHEST_WEIGHT)


def _is_highest(score: RowFloat, counted: RowBool) -> RowBool:
    counted_score = torch.atleast_1d(masked(score, counted, -torch.inf))
    # The padding avoids the error of `amax` for a batch without rows.
    best = torch.nn.functional.pad(counted_score, (0, 1), value=-torch.inf).amax(-1, keepdim=True)
    return counted & (score == best).reshape(score.shape)


def resample(weight: RowFloat, noise: RowFloat, counted: RowBool) -> RowFloat:
    """Draw as many rows as there are counted rows, with replacement, and return how often each row is drawn.

    The probability of a row is its `weight` divided by the sum of weights of counted rows. `noise` holds a number for
    each row, uniform in [0, 1). The numbers of the counted rows are the draws, by the inverse of the cumulative sum of
    weights. The cumulative sum is over rows in the order of their noise, so the result does not depend on the order of
    the batch. Which row has which of the numbers is independent of the numbers, so this order does not bias the draws.
    Rows that are not counted draw nothing and get 0. Shapes: [rows] each.

    >>> weight, noise = torch.tensor([3.0, 1.0, 9.0]), torch.tensor([0.1, 0.7, 0.0])
    >>> resample(weight, noise, torch.tensor([True, True, False]))
    tensor([2., 0., 0.])
    """
    shape, (weight, noise, counted) = weight.shape, torch.atleast_1d(weight, noise, as_mask(counted))
    order = masked(noise, counted, -1).argsort(dim=-1, stable=True)
    is_draw, uniform = counted.gather(-1, order), noise.gather(-1, order)
    cumulative = torch.where(is_draw, weight.gather(-1, order), 0).cumsum(-1)
    is_below = cumulative.unsqueeze(-2) <= (uniform * cumulative[..., -1:]).unsqueeze(-1)
    drawn = is_below.sum(-1).clamp(max=weight.shape[-1] - 1)
    copies = torch.zeros_like(weight).scatter_add(-1, drawn, is_draw.to(weight.dtype))
    return torch.zeros_like(weight).scatter(-1, order, copies).reshape(shape)
