"""Whitening: advantages with mean 0 and standard deviation 1 over everything that is counted."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from purerl.types import RowBool, RowFloat, Scalar, TokenBool, TokenFloat

__all__ = ["centre", "deviation", "whiten", "whiten_rows"]

EPS = 1e-8
"""Added to a standard deviation that is divided by."""


def centre(x: TokenFloat, mask: TokenBool) -> TokenFloat:
    """What `x` has above its mean over the counted tokens of the whole batch; 0 outside `mask`.

    The largest value is subtracted before the mean is taken, as in `group_deviation`: so the result is exactly 0 where
    all values are equal. With nothing counted it is 0.
    """
    tokens = mask.sum((-2, -1), keepdim=True).clamp(min=1)
    highest = torch.where(mask, x, -torch.inf).amax(-1).detach()
    # One more, lest there be no row: the largest of nothing is refused.
    highest = pad(highest, (0, 1), value=-torch.inf).amax(-1)
    below = torch.where(mask, x - highest[..., None, None], 0)
    return torch.where(mask, below - below.sum((-2, -1), keepdim=True) / tokens, 0)


def deviation(x: TokenFloat, mask: TokenBool) -> Scalar:
    """The standard deviation of the counted tokens of the whole batch: it divides by their number less 1.

    Where all values are equal, or there is only one, it is exactly 0.
    """
    return _deviation(centre(x, mask), mask)


def whiten(x: TokenFloat, mask: TokenBool) -> TokenFloat:
    """(x - mean) / (std + 1e-8) over the counted tokens of the whole batch; 0 outside `mask`.

    The standard deviation divides by the number of tokens less 1. Where all values are equal, or there is only one, the
    result is 0. It is a statistic of the batch: whitening parts of a batch one by one is another thing.

    >>> whiten(torch.tensor([[1.0, 3.0, 100.0]]), torch.tensor([[True, True, False]]))
    tensor([[-0.7071,  0.7071,  0.0000]])
    """
    centred = centre(x, mask)
    return centred / (_deviation(centred, mask)[..., None, None] + EPS)


def whiten_rows(x: RowFloat, counted: RowBool) -> RowFloat:
    """`whiten` of a value for each row, over the counted rows of the whole batch: long rows weigh no more than others.

    >>> whiten_rows(torch.tensor([1.0, 3.0, 100.0]), torch.tensor([True, True, False]))
    tensor([-0.7071,  0.7071,  0.0000])
    """
    return whiten(x.unsqueeze(-1), counted.unsqueeze(-1)).squeeze(-1)


def _deviation(centred: TokenFloat, mask: TokenBool) -> Scalar:
    others = (mask.sum((-2, -1)) - 1).clamp(min=1)
    return (centred.square().sum((-2, -1)) / others).sqrt()
