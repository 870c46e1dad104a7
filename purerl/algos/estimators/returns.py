"""Advantages of tokens: what came after them, with a critic's help or without.

The recurrences run over action tokens alone: in every equation t + 1 is the *next action token*, and beyond the last
one everything is 0. A reward on another token counts at the action token before it; one before any action token, at the
first (see `purerl.algos.parts.actions`).

Arguments are [rows, time], in units of reward; results are 0 where not `action`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from purerl.algos.parts.actions import fold, places, unfold
from purerl.algos.parts.surrogates import token_ratio
from purerl.kernels.masks import count_true, first_true
from purerl.kernels.recurrence import reverse_recurrence
from purerl.types import RowInt, TokenBool, TokenFloat

__all__ = ["discounted_returns", "gae", "length_adaptive_lambda", "vtrace_advantage", "vtrace_target"]


def discounted_returns(reward: TokenFloat, action: TokenBool, *, discount: float) -> TokenFloat:
    """G_t = r_t + discount * G_{t+1}: the reward to go. Source: REINFORCE (Williams 1992).

    >>> action = torch.tensor([[False, True, False, True]])
    >>> discounted_returns(torch.tensor([[0.0, 1.0, 0.0, 8.0]]), action, discount=0.5)
    tensor([[0., 5., 0., 8.]])
    """
    return _to_go(reward, action, first_true(action), discount) * action.view(torch.uint8)


def gae(
    reward: TokenFloat, value: TokenFloat, action: TokenBool, *, discount: float, lambda_: float | Tensor
) -> TokenFloat:
    """Generalized advantage estimation.

        delta_t = r_t + discount * V_{t+1} - V_t
        A_t     = delta_t + discount * lambda_ * A_{t+1}

    A row ends for good at its last action token: V beyond it is 0, whether it stopped by itself or at the length limit.
    A + V is the critic's target, the lambda-return; what is computed is

        A_t + V_t = r_t + discount * (1 - lambda_) * V_{t+1} + discount * lambda_ * (A_{t+1} + V_{t+1})

    lambda_ = 0 gives the one-step error, lambda_ = 1 the reward to go less V. A tensor [rows, 1] gives
    each row its own.
    Source: Schulman et al. 2015 (1506.02438, eq. 16).

    >>> yes = torch.tensor([[True, True]])
    >>> gae(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.5]]), yes, discount=1.0, lambda_=0.5)
    tensor([[0.2500, 0.5000]])
    """
    start = first_true(action)
    after = pad(torch.where(action.scatter(-1, start.unsqueeze(-1), 0), value, 0)[..., 1:], (0, 1))
    lambda_return = _to_go(reward + discount * (1 - lambda_) * after, action, start, discount * lambda_)
    return torch.where(action, lambda_return - value, 0)


def length_adaptive_lambda(action: TokenBool, *, alpha: float, dtype: torch.dtype) -> Tensor:
    """max(0, 1 - 1 / (alpha * n_i)), with n_i the row's action tokens: [rows, 1], for `gae`.

    An outcome reward decays with the distance from a row's end; so the sum of all its weights, 1 / (1 - lambda_), is
    made to grow with the row: it is alpha * n_i. Source: VAPO (2504.05118, eq. 9).

    >>> action = torch.tensor([[True, True, True, True], [True, False, False, False]])
    >>> length_adaptive_lambda(action, alpha=0.5, dtype=torch.float32)
    tensor([[0.5000],
            [0.0000]])
    """
    length = count_true(action).unsqueeze(-1).clamp(min=1).to(dtype)
    return (1 - 1 / (alpha * length)).clamp(min=0)


def vtrace_target(
    reward: TokenFloat,
    value: TokenFloat,
    logp: TokenFloat,
    rollout_logp: TokenFloat,
    action: TokenBool,
    *,
    discount: float,
    lambda_: float,
    rho_clip: float,
    trace_clip: float,
) -> TokenFloat:
    """What the critic's estimate should be, of rows that another policy sampled.

        r_t     = exp(logp_t - rollout_logp_t),   rho_t = min(r_t, rho_clip),   c_t = lambda_ * min(r_t, trace_clip)
        delta_t = rho_t (reward_t + discount * V_{t+1} - V_t)
        v_t     = V_t + e_t,   e_t = delta_t + discount * c_t * e_{t+1}

    `rho_clip` decides what is estimated: at infinity the value of the policy, below it that of one between the two
    policies. `trace_clip`, at most 1 / discount, only decides how fast. With both policies the same and clips of at
    least 1 it is the lambda-return, `gae` + V. Source: Espeholt et al. 2018 (1802.01561, eq. 1).
    """
    place, ratio = places(action), torch.where(action, token_ratio(logp, rollout_logp), 0)
    value, ratio = fold(torch.where(action, value, 0), place), fold(ratio, place)
    delta = ratio.clamp(max=rho_clip) * (fold(reward, place) + discount * pad(value[..., 1:], (0, 1)) - value)
    error = reverse_recurrence(delta, discount * lambda_ * ratio.clamp(max=trace_clip))
    return unfold(value + error, place, action)


def vtrace_advantage(
    reward: TokenFloat,
    value: TokenFloat,
    target: TokenFloat,
    logp: TokenFloat,
    rollout_logp: TokenFloat,
    action: TokenBool,
    *,
    discount: float,
    rho_clip: float,
) -> TokenFloat:
    """rho_t (reward_t + discount * v_{t+1} - V_t), with v the `vtrace_target`: what the policy gradient multiplies.

    Source: Espeholt et al. 2018 (1802.01561, sec. 4.2).
    """
    place, ratio = places(action), torch.where(action, token_ratio(logp, rollout_logp), 0).clamp(max=rho_clip)
    following = pad(fold(torch.where(action, target, 0), place)[..., 1:], (0, 1))
    error = fold(reward, place) + discount * following - fold(torch.where(action, value, 0), place)
    return ratio * unfold(error, place, action)


def _to_go(x: TokenFloat, action: TokenBool, start: RowInt, decay: float | Tensor) -> TokenFloat:
    """At each action token, y_t = x_t + decay * y_{t+1}, where x_t is all that counts there. Elsewhere, anything.

    Nothing moves in the row. It is the step onto an action token that decays, so that other tokens pass on what comes
    after them as it is. The step onto the first one, at `start`, does not: then y at the start of the row is what
    counts there.
    """
    start = start.unsqueeze(-1)
    onto = pad(action.scatter(-1, start, 0)[..., 1:], (0, 1))
    decay = decay * torch.ones_like(x[..., :1])  # A number beside a mask would be rounded to float32.
    # No decay exceeds 1, so where a step does not decay the larger of the two is 1.
    y = reverse_recurrence(x, torch.maximum(decay, (~onto).view(torch.uint8)))
    return y.scatter(-1, start, y[..., :1])
