"""Whitening: values with mean 0 and standard deviation 1 over the counted tokens or rows of a batch.

Values in 16 bits are computed in float32, and the result has their dtype.
"""

from __future__ import annotations

import torch

from purerl.algos.parts.elementwise import narrowed, widened
from purerl.kernels.masks import any_true, as_bytes, as_mask, count_true, first_true, masked
from purerl.types import Count, RowBool, RowFloat, Scalar, TokenBool, TokenFloat

__all__ = ["center", "standard_deviation", "whiten", "whiten_rows"]

EPS = 1e-8
"""Added to a standard deviation before a division by it."""


def center(x: TokenFloat, mask: TokenBool) -> TokenFloat:
    """Subtract the mean over the counted tokens of the whole batch. The result is 0 outside of `mask`.

        y_t = x_t - mean(x)

    One of the values is subtracted before the mean is taken, so the result is exactly 0 if all values are equal. It is
    0 without counted tokens. Shapes: [rows, time] each.
    """
    rows, mask = torch.atleast_2d(widened(x), as_mask(mask, x))
    return narrowed(_center(rows, mask, count_true(mask).sum(-1)).reshape(x.shape), x)


def standard_deviation(x: TokenFloat, mask: TokenBool, *, ddof: int = 1) -> Scalar:
    """Compute the standard deviation over the counted tokens of the whole batch, with divisor n - ddof.

    It is exactly 0 if all values are equal, or if fewer than two tokens are counted. Shapes: [rows, time] each; the
    result is a scalar.
    """
    rows, mask = torch.atleast_2d(widened(x), as_mask(mask, x))
    tokens = count_true(mask).sum(-1)
    return narrowed(_standard_deviation(_center(rows, mask, tokens), tokens, ddof), x)


def whiten(x: TokenFloat, mask: TokenBool, *, eps: float = EPS, ddof: int = 1) -> TokenFloat:
    """Whiten `x` over the counted tokens of the whole batch. The result is 0 outside of `mask`.

        y_t = (x_t - mean(x)) / (std(x) + eps)

    The standard deviation has the divisor n - ddof. The result is 0 if all values are equal, or if fewer than two
    tokens are counted. Whitening the parts of a batch separately gives another result. Shapes: [rows, time] each.

    >>> whiten(torch.tensor([[1.0, 3.0, 100.0]]), torch.tensor([[True, True, False]]))
    tensor([[-0.7071,  0.7071,  0.0000]])
    """
    rows, mask = torch.atleast_2d(widened(x), as_mask(mask, x))
    tokens = count_true(mask).sum(-1)
    centered = _center(rows, mask, tokens)
    std = _standard_deviation(centered, tokens, ddof)[..., None, None]
    return narrowed((centered / (std + eps)).reshape(x.shape), x)


def whiten_rows(x: RowFloat, counted: RowBool) -> RowFloat:
    """Whiten one value per row over the counted rows of the whole batch. Every row has the same weight.

    The result is 0 in rows that are not counted. Otherwise it is the same as `whiten`. Shapes: [rows] each.

    >>> whiten_rows(torch.tensor([1.0, 3.0, 100.0]), torch.tensor([True, True, False]))
    tensor([-0.7071,  0.7071,  0.0000])
    """
    return whiten(x.unsqueeze(-1), counted.unsqueeze(-1)).squeeze(-1)


def _center(x: TokenFloat, mask: TokenBool, tokens: Count) -> TokenFloat:
    if not x.numel():
        return x
    shifted = masked(x - _first_counted_value(x.detach(), mask)[..., None, None], mask)
    mean = shifted.sum((-2, -1)) / tokens.clamp(min=1)
    # The mean is negated, because the gradient of `value=-1` with bytes is wrong: -1 times a byte of 1 is 255.
    return torch.addcmul(shifted, -mean[..., None, None], as_bytes(mask))


def _standard_deviation(centered: TokenFloat, tokens: Count, ddof: int) -> Scalar:
    # In float64, in which squares of float32 numbers neither overflow nor become 0.
    norm = torch.linalg.vector_norm(centered, dim=(-2, -1), dtype=torch.float64)
    return (norm / (tokens - ddof).clamp(min=1).double().sqrt()).to(centered.dtype)


def _first_counted_value(x: TokenFloat, mask: TokenBool) -> Scalar:
    """Return the first counted value of the first row that has one; an arbitrary value without counted tokens."""
    row = first_true(any_true(mask))[..., None, None].expand(*x.shape[:-2], 1, x.shape[-1])
    position = first_true(mask.gather(-2, row)).unsqueeze(-1)
    return x.gather(-2, row).gather(-1, position)[..., 0, 0]
