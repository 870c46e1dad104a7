"""Advantages of tokens: what came after them, with a critic's help or without.

The recurrences run over action tokens alone (see `purerl.algos.parts.actions`): in every equation t + 1 is the *next
action token*, and beyond the last one everything is 0. Rewards on other tokens are folded into action tokens first.

Arguments are [rows, time], in units of reward; results are 0 where not `action`.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from purerl.algos.parts.actions import fold, places, unfold
from purerl.kernels.recurrence import reverse_recurrence
from purerl.types import TokenBool, TokenFloat

__all__ = ["discounted_returns", "gae"]


def discounted_returns(reward: TokenFloat, action: TokenBool, *, discount: float) -> TokenFloat:
    """G_t = r_t + discount * G_{t+1}: the reward to go. Source: REINFORCE (Williams 1992).

    >>> action = torch.tensor([[False, True, False, True]])
    >>> discounted_returns(torch.tensor([[0.0, 1.0, 0.0, 8.0]]), action, discount=0.5)
    tensor([[0., 5., 0., 8.]])
    """
    place = places(action)
    return unfold(reverse_recurrence(fold(reward, place), discount), place, action)


def gae(reward: TokenFloat, value: TokenFloat, action: TokenBool, *, discount: float, lambda_: float) -> TokenFloat:
    """Generalised advantage estimation.

        delta_t = r_t + discount * V_{t+1} - V_t
        A_t     = delta_t + discount * lambda_ * A_{t+1}

    A row ends for good at its last action token: V beyond it is 0, whether it stopped by itself or at the length limit.
    A + V is the critic's target. lambda_ = 0 gives the one-step error, lambda_ = 1 the reward to go less V.
    Source: Schulman et al. 2015 (1506.02438, eq. 16).

    >>> yes = torch.tensor([[True, True]])
    >>> gae(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.5]]), yes, discount=1.0, lambda_=0.5)
    tensor([[0.2500, 0.5000]])
    """
    place = places(action)
    value = fold(torch.where(action, value, 0), place)
    delta = fold(reward, place) + discount * pad(value[..., 1:], (0, 1)) - value
    return unfold(reverse_recurrence(delta, discount * lambda_), place, action)
