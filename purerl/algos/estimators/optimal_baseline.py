"""Advantages with the optimal token baseline, which minimizes the variance of the policy gradient."""

from __future__ import annotations

import torch

from purerl.algos.parts.actions import action_index, gather_to_actions, segment_sum
from purerl.algos.parts.elementwise import add_eps
from purerl.algos.parts.groups import group_token_max, group_token_sum
from purerl.kernels.masks import masked
from purerl.types import RowInt, TokenBool, TokenFloat

__all__ = ["optimal_token_advantage"]

EPS = 1e-8
"""Added to a sum of weights before a division by it."""


def optimal_token_advantage(
    returns: TokenFloat, logp: TokenFloat, sum_pi_squared: TokenFloat, action: TokenBool, mask: TokenBool, group: RowInt
) -> TokenFloat:
    """Subtract from each return the variance-minimizing baseline of the group at the same step.

        w_it = max(1 - 2 exp(logp_it) + sum_v pi_it(v)^2, 0)     squared gradient of logp_it in the logits
        W_it = sum_{j <= t} w_ij
        M_t  = max_i(G_it)                                       over the rows of the group that reach t
        B_t  = M_t + (sum_i W_it (G_it - M_t)) / (sum_i W_it + 1e-8)
        A_it = G_it - B_t

    t counts action tokens, so the t-th action token of a row is compared with the t-th action tokens of the other rows.
    Masked-out action tokens have no weight and do not enter B_t. If only one row reaches t, or if all rows that do have
    the same return, A is exactly 0 for any weights: this is the reason for M. Without its bound, rounding can make w
    negative.

    Shapes: `group` is [rows], the others are [rows, time]. `returns` is in units of reward, and 0 outside of `action`.
    The result is 0 outside of `mask`. Source: 2602.07078.

    >>> mask, half = torch.tensor([[True], [True]]), torch.tensor([[0.5], [0.5]])
    >>> optimal_token_advantage(torch.tensor([[1.0], [0.0]]), half.log(), half, mask, mask, torch.tensor([4, 4]))
    tensor([[ 0.5000],
            [-0.5000]])
    """
    index = action_index(action)
    squared_gradient = (1 - 2 * logp.clamp(max=0).exp() + sum_pi_squared).clamp(min=0)
    is_reached = segment_sum(mask.to(returns.dtype), index)
    weight = is_reached * segment_sum(masked(squared_gradient, mask), index).cumsum(-1)
    compact_returns = segment_sum(returns, index)
    highest = group_token_max(torch.where(is_reached > 0, compact_returns, -torch.inf), group)
    shifted = torch.where(is_reached > 0, compact_returns - highest, 0)
    baseline = group_token_sum(weight * shifted, group) / add_eps(group_token_sum(weight, group), EPS)
    return masked(gather_to_actions(shifted - baseline, index, action), mask)
