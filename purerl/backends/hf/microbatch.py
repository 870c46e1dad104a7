"""Cutting a batch into micro-batches that fit a budget of tokens.

A row costs the tokens that the model has to read for it: those before its last action token. Rows of like cost go
together, so that little of a micro-batch is padding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purerl.types import RowInt, TokenBool

__all__ = ["microbatches", "tokens_needed"]


def tokens_needed(action: TokenBool) -> RowInt:
    """How many tokens of each row have to be read: all before its last action token, which itself predicts nothing.

    >>> tokens_needed(torch.tensor([[False, True, True, False], [False, False, False, False]]))
    tensor([2, 0])
    """
    return (action * torch.arange(action.shape[-1], device=action.device)).amax(-1)


def microbatches(needed: RowInt, unit: RowInt, *, budget: int) -> list[Tensor]:
    """The rows of each micro-batch, in increasing order.

    needed   [rows] tokens to read of each row
    unit     [rows] labels; rows with the same label stay together
    budget   rows of a micro-batch times its width (the longest row's tokens), at most; unless one unit alone is more

    Every row is in exactly one micro-batch. Without rows there is one, which is empty: an optimizer step is never
    without a forward and a backward pass.

    >>> microbatches(torch.tensor([9, 2, 9, 3]), torch.arange(4), budget=18)
    [tensor([0, 2]), tensor([1, 3])]
    """
    labels, member = unit.unique(return_inverse=True)
    sizes = torch.bincount(member, minlength=len(labels))
    widths = torch.zeros_like(sizes).scatter_reduce(0, member, needed.clamp(min=1), "amax")
    order = torch.argsort(widths, descending=True, stable=True)
    number, part, rows, width = [0] * len(labels), 0, 0, 0
    for index, size, longest in zip(order.tolist(), sizes[order].tolist(), widths[order].tolist(), strict=True):
        # Units come longest first, so the first one of a micro-batch gives its width.
        if rows and (rows + size) * width > budget:
            part, rows = part + 1, 0
        width = width if rows else longest
        rows += size
        number[index] = part
    parts = torch.tensor(number, dtype=torch.int64, device=member.device)[member]
    return [(parts == k).nonzero()[:, 0] for k in range(part + 1)]
