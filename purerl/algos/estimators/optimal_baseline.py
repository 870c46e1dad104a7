"""The baseline that leaves a policy gradient with the least variance, at each token."""

from __future__ import annotations

import torch

from purerl.algos.parts.actions import fold, places, unfold
from purerl.algos.parts.groups import group_token_max, group_token_sum
from purerl.types import RowInt, TokenBool, TokenFloat

__all__ = ["optimal_token_advantage"]

EPS = 1e-8
"""Added to a sum of weights that is divided by."""


def optimal_token_advantage(
    returns: TokenFloat,
    logp: TokenFloat,
    sum_pi_squared: TokenFloat,
    action: TokenBool,
    mask: TokenBool,
    group: RowInt,
) -> TokenFloat:
    """G_t less the mean of the group's G_t, weighted with the squared gradient of the row so far.

        w_it = 1 - 2 exp(logp_it) + sum_v pi_it(v)^2             squared gradient of logp_it in the logits
        W_it = sum_{s <= t} w_is
        M_t  = max_i G_it                                        over the rows of the group that reach t
        B_t  = M_t + sum_i W_it (G_it - M_t) / (sum_i W_it + 1e-8)
        A_it = G_it - B_t

    t counts action tokens: the t-th of a row is compared with the t-th of the others. Tokens that are masked out have
    no weight, and are no row's t-th. Where only one row reaches t, or all that do have the same return, A is exactly 0,
    whatever the weights: that is what M is for. w is never negative but by rounding, and is clamped there.
    Source: 2602.07078. `returns` is [rows, time], 0 where not `action`.

    >>> yes, half = torch.tensor([[True], [True]]), torch.tensor([[0.5], [0.5]])
    >>> optimal_token_advantage(torch.tensor([[1.0], [0.0]]), half.log(), half, yes, yes, torch.tensor([4, 4]))
    tensor([[ 0.5000],
            [-0.5000]])
    """
    place = places(action)
    squared_gradient = (1 - 2 * logp.clamp(max=0).exp() + sum_pi_squared).clamp(min=0)
    reached = fold(mask.to(returns.dtype), place)
    weight = reached * fold(torch.where(mask, squared_gradient, 0), place).cumsum(-1)
    folded = fold(returns, place)
    highest = group_token_max(torch.where(reached > 0, folded, -torch.inf), group)
    below = torch.where(reached > 0, folded - highest, 0)
    baseline = group_token_sum(weight * below, group) / (group_token_sum(weight, group) + EPS)
    return torch.where(mask, unfold(below - baseline, place, action), 0)
