"""From the tokens of a row to one number, and from one number to tokens.

`x` is [rows, time] or [rows]; `mask` says which tokens count, and what stands at the others is never read.
"""

from __future__ import annotations

import torch

from purerl.kernels.masks import any_true, count_true
from purerl.types import RowFloat, TokenBool, TokenFloat

__all__ = ["at_last_action", "broadcast_to_tokens", "first_counted", "row_max", "row_mean", "row_sum"]


def row_sum(x: TokenFloat, mask: TokenBool) -> RowFloat:
    """The sum of `x` over the counted tokens of each row."""
    return torch.where(mask, x, 0).sum(-1)


def row_mean(x: TokenFloat, mask: TokenBool) -> RowFloat:
    """The mean of `x` over the counted tokens of each row; 0 where there is none.

    >>> row_mean(torch.tensor([[1.0, 3.0], [7.0, 9.0]]), torch.tensor([[True, True], [False, False]]))
    tensor([2., 0.])
    """
    return torch.where(mask, x, 0).sum(-1) / count_true(mask).clamp(min=1)


def row_max(x: TokenFloat, mask: TokenBool) -> RowFloat:
    """The largest `x` of the counted tokens of each row; 0 where there is none.

    >>> row_max(torch.tensor([[-3.0, -1.0], [7.0, 9.0]]), torch.tensor([[True, True], [False, False]]))
    tensor([-1.,  0.])
    """
    return torch.where(any_true(mask), torch.where(mask, x, -torch.inf).amax(-1), 0)


def first_counted(x: TokenFloat, mask: TokenBool) -> RowFloat:
    """`x` at the first counted token of each row; 0 where there is none.

    >>> first_counted(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[False, True, True]]))
    tensor([2.])
    """
    return torch.where(mask & (mask.cumsum(-1) == 1), x, 0).sum(-1)


def broadcast_to_tokens(x: RowFloat, mask: TokenBool) -> TokenFloat:
    """Every counted token of row i gets x_i, which is finite; the others get 0.

    >>> broadcast_to_tokens(torch.tensor([2.0]), torch.tensor([[False, True, True]]))
    tensor([[0., 2., 2.]])
    """
    return x.unsqueeze(-1) * mask.view(torch.uint8)


def at_last_action(x: RowFloat, action: TokenBool) -> TokenFloat:
    """x_i at the last action token of row i, where an outcome sits; 0 elsewhere.

    >>> at_last_action(torch.tensor([5.0]), torch.tensor([[True, True, False]]))
    tensor([[0., 5., 0.]])
    """
    count_true = action.cumsum(-1)
    return torch.where(action & (count_true == count_true[..., -1:]), x.unsqueeze(-1), 0)
