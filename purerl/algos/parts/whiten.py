"""Whitening: advantages with mean 0 and standard deviation 1 over everything that is counted."""

from __future__ import annotations

import torch

from purerl.kernels.masks import any_true, count_true, first_true
from purerl.types import Count, RowBool, RowFloat, Scalar, TokenBool, TokenFloat

__all__ = ["center", "deviation", "whiten", "whiten_rows"]

EPS = 1e-8
"""Added to a standard deviation that is divided by."""


def center(x: TokenFloat, mask: TokenBool) -> TokenFloat:
    """What `x` has above its mean over the counted tokens of the whole batch; 0 outside `mask`.

    One of the values is subtracted before the mean is taken: so the result is exactly 0 where all values are equal.
    With nothing counted it is 0.
    """
    return _center(x, mask, count_true(mask).sum(-1))


def deviation(x: TokenFloat, mask: TokenBool) -> Scalar:
    """The standard deviation of the counted tokens of the whole batch: it divides by their number less 1.

    Where all values are equal, or there is only one, it is exactly 0.
    """
    tokens = count_true(mask).sum(-1)
    return _deviation(_center(x, mask, tokens), tokens)


def whiten(x: TokenFloat, mask: TokenBool) -> TokenFloat:
    """(x - mean) / (std + 1e-8) over the counted tokens of the whole batch; 0 outside `mask`.

    The standard deviation divides by the number of tokens less 1. Where all values are equal, or there is only one, the
    result is 0. It is a statistic of the batch: whitening parts of a batch one by one is another thing.

    >>> whiten(torch.tensor([[1.0, 3.0, 100.0]]), torch.tensor([[True, True, False]]))
    tensor([[-0.7071,  0.7071,  0.0000]])
    """
    tokens = count_true(mask).sum(-1)
    centered = _center(x, mask, tokens)
    return centered / (_deviation(centered, tokens)[..., None, None] + EPS)


def whiten_rows(x: RowFloat, counted: RowBool) -> RowFloat:
    """`whiten` of a value for each row, over the counted rows of the whole batch: long rows weigh no more than others.

    >>> whiten_rows(torch.tensor([1.0, 3.0, 100.0]), torch.tensor([True, True, False]))
    tensor([-0.7071,  0.7071,  0.0000])
    """
    return whiten(x.unsqueeze(-1), counted.unsqueeze(-1)).squeeze(-1)


def _center(x: TokenFloat, mask: TokenBool, tokens: Count) -> TokenFloat:
    if not x.numel():
        return x
    apart = torch.where(mask, x - _one_of(x.detach(), mask)[..., None, None], 0)
    mean = apart.sum((-2, -1)) / tokens.clamp(min=1)
    return torch.addcmul(apart, mean[..., None, None], mask.view(torch.uint8), value=-1)


def _deviation(centered: TokenFloat, tokens: Count) -> Scalar:
    others = (tokens - 1).clamp(min=1).double().sqrt().to(centered.dtype)
    return torch.linalg.vector_norm(centered, dim=(-2, -1)) / others


def _one_of(x: TokenFloat, mask: TokenBool) -> Scalar:
    """The first counted value of the first row that has any; anything where nothing is counted."""
    row = first_true(any_true(mask))[..., None, None].expand(*x.shape[:-2], 1, x.shape[-1])
    place = first_true(mask.gather(-2, row)).unsqueeze(-1)
    return x.gather(-2, row).gather(-1, place)[..., 0, 0]
