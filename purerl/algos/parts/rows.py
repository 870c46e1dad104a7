"""Reductions from the tokens of a row to one value, and broadcasts from one value to tokens.

`x` is [rows, time] or [rows], and `mask` or `action` is [rows, time]. Values at masked-out tokens have no effect.
"""

from __future__ import annotations

import torch

from purerl.kernels.masks import any_true, as_bytes, as_mask, count_true, masked
from purerl.types import RowFloat, TokenBool, TokenFloat

__all__ = ["at_last_action", "broadcast_to_tokens", "first_counted", "last_counted", "row_max", "row_mean", "row_sum"]


def row_sum(x: TokenFloat, mask: TokenBool) -> RowFloat:
    """Sum `x` over the counted tokens of each row: [rows, time] -> [rows]."""
    return masked(x, mask).sum(-1)


def row_mean(x: TokenFloat, mask: TokenBool) -> RowFloat:
    """Compute the mean of `x` over the counted tokens of each row, 0 without any: [rows, time] -> [rows].

    >>> row_mean(torch.tensor([[1.0, 3.0], [7.0, 9.0]]), torch.tensor([[True, True], [False, False]]))
    tensor([2., 0.])
    """
    return masked(x, mask).sum(-1) / count_true(mask).clamp(min=1)


def row_max(x: TokenFloat, mask: TokenBool) -> RowFloat:
    """Compute the maximum of `x` over the counted tokens of each row, 0 without any: [rows, time] -> [rows].

    >>> row_max(torch.tensor([[-3.0, -1.0], [7.0, 9.0]]), torch.tensor([[True, True], [False, False]]))
    tensor([-1.,  0.])
    """
    if not mask.shape[-1]:
        return row_sum(x, mask)
    return torch.where(any_true(mask), masked(x, mask, -torch.inf).amax(-1), 0)


def first_counted(x: TokenFloat, mask: TokenBool) -> RowFloat:
    """Return `x` at the first counted token of each row, 0 without any: [rows, time] -> [rows].

    >>> first_counted(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[False, True, True]]))
    tensor([2.])
    """
    return masked(x, as_mask(mask) & (mask.cumsum(-1) == 1)).sum(-1)


def last_counted(x: TokenFloat, mask: TokenBool) -> RowFloat:
    """Return `x` at the last counted token of each row, 0 without any: [rows, time] -> [rows].

    >>> last_counted(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[True, True, False]]))
    tensor([2.])
    """
    count = as_mask(mask).cumsum(-1)
    return masked(x, mask & (count == count[..., -1:])).sum(-1)


def broadcast_to_tokens(x: RowFloat, mask: TokenBool) -> TokenFloat:
    """Write x_i to every counted token of row i, and 0 to the others: [rows] -> [rows, time]. `x` must be finite.

    >>> broadcast_to_tokens(torch.tensor([2.0]), torch.tensor([[False, True, True]]))
    tensor([[0., 2., 2.]])
    """
    return x.unsqueeze(-1) * as_bytes(mask)


def at_last_action(x: RowFloat, action: TokenBool) -> TokenFloat:
    """Write x_i to the last action token of row i, and 0 to the others: [rows] -> [rows, time].

    The reward of a completion is at this token. A row without action tokens gets 0 everywhere.

    >>> at_last_action(torch.tensor([5.0]), torch.tensor([[True, True, False]]))
    tensor([[0., 5., 0.]])
    """
    actions_so_far = as_mask(action).cumsum(-1)
    return masked(x.unsqueeze(-1), action & (actions_so_far == actions_so_far[..., -1:]))
