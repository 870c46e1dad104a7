"""Advantages of binary rewards that depend on how often the prompt has been solved."""

from __future__ import annotations

import torch

from purerl.algos.parts.groups import group_size, group_sum
from purerl.kernels.masks import as_mask, masked
from purerl.types import RowBool, RowFloat, RowInt

__all__ = ["history_advantage"]


def history_advantage(is_correct: RowBool, rate: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """Weight the correct rows of a group by how rarely its prompt is solved, and balance the others, as in NGU.

        A_i = 1 - p                      if row i is correct
              -(1 - p) k / (N_g - k)     else

    p is `rate`, the success rate of the prompt over all of its attempts, and k the number of correct rows of the group.
    The sum over the group is 0. If all rows of the group are correct, or none, every advantage is 0. With p = k / N_g,
    the rate of the group itself, A is the deviation from the mean. Rows that are not counted get 0. Shapes: [rows]
    each. Source: NGU, as in prime-rl.

    >>> counted, group = torch.tensor([True, True, True, True]), torch.tensor([3, 3, 3, 3])
    >>> history_advantage(torch.tensor([True, False, False, False]), torch.full((4,), 0.5), group, counted)
    tensor([ 0.5000, -0.1667, -0.1667, -0.1667])
    """
    is_correct = as_mask(is_correct)
    correct = group_sum(masked(is_correct.to(rate.dtype), counted), group)
    wrong = group_size(counted, group, dtype=rate.dtype) - correct
    balance = torch.where(is_correct, 1, -correct / wrong.clamp(min=1))
    return masked((1 - rate) * balance, counted & (correct > 0) & (wrong > 0))
