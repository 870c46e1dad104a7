"""Returns and advantages of tokens, with or without a critic.

Recurrences run over action tokens only. In every equation, t + 1 is the *next action token*, and all values after the
last action token are 0. A reward on any other token counts at the action token before it; a reward before the first
action token counts at the first (see `purerl.algos.parts.actions`).

Arguments are [rows, time], in units of reward. Results are 0 at tokens that are not actions.
"""

from __future__ import annotations

import torch

from purerl.algos.parts.actions import action_index, gather_to_actions, segment_sum
from purerl.algos.parts.surrogates import token_ratio
from purerl.kernels.masks import as_bytes, count_true, first_true, masked
from purerl.kernels.recurrence import reverse_recurrence
from purerl.types import RowInt, TokenBool, TokenFloat

__all__ = ["discounted_returns", "gae", "length_adaptive_lambda", "vtrace_advantage", "vtrace_target"]


def discounted_returns(reward: TokenFloat, action: TokenBool, *, discount: float) -> TokenFloat:
    """Compute the discounted return of each action token.

        G_t = reward_t + discount * G_{t+1}

    Shapes: [rows, time] each, in units of reward. Source: REINFORCE (Williams 1992).

    >>> action = torch.tensor([[False, True, False, True]])
    >>> discounted_returns(torch.tensor([[0.0, 1.0, 0.0, 8.0]]), action, discount=0.5)
    tensor([[0., 5., 0., 8.]])
    """
    return _discounted_sum(reward, action, first_true(action), discount) * as_bytes(action)


def gae(
    reward: TokenFloat, value: TokenFloat, action: TokenBool, *, discount: float, lambda_: float | torch.Tensor
) -> TokenFloat:
    """Compute generalized advantage estimates (GAE).

        delta_t = reward_t + discount * V_{t+1} - V_t
        A_t     = delta_t + discount * lambda_ * A_{t+1}

    The value after the last action token is 0, for rows that ended by themselves and for rows that reached the length
    limit. A + V is the target of the critic, the lambda-return, and the function computes

        A_t + V_t = reward_t + discount * (1 - lambda_) * V_{t+1} + discount * lambda_ * (A_{t+1} + V_{t+1})

    lambda_ = 0 gives the one-step error, lambda_ = 1 gives the return minus V. `lambda_` can be a tensor [rows, 1],
    with one value per row. Shapes: the others are [rows, time], in units of reward.
    Source: Schulman et al. 2015 (1506.02438, eq. 16).

    >>> action = torch.tensor([[True, True]])
    >>> gae(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.5]]), action, discount=1.0, lambda_=0.5)
    tensor([[0.2500, 0.5000]])
    """
    start = first_true(action)
    after_start = torch.where(action.scatter(-1, start.unsqueeze(-1), 0), value, 0)
    next_value = torch.nn.functional.pad(after_start[..., 1:], (0, 1))
    rewards = reward + discount * (1 - lambda_) * next_value
    lambda_return = _discounted_sum(rewards, action, start, discount * lambda_)
    return masked(lambda_return - value, action)


def length_adaptive_lambda(action: TokenBool, *, alpha: float, dtype: torch.dtype) -> torch.Tensor:
    """Compute the length-adaptive lambda_ of VAPO, for `gae`.

        lambda_i = max(0, 1 - 1 / (alpha * n_i))

    n_i is the number of action tokens of the row. With a constant lambda_, the weight of an outcome reward decays with
    the distance from the end of the row. Here the sum of the weights, 1 / (1 - lambda_i) = alpha * n_i, grows with the
    row. A row without action tokens has n_i = 1. Shapes: `action` is [rows, time]; the result is [rows, 1].
    Source: VAPO (2504.05118, eq. 9).

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
    """Compute the V-trace targets of a critic, for rows that another policy sampled.

        r_t     = exp(logp_t - rollout_logp_t)
        rho_t   = min(r_t, rho_clip)
        c_t     = lambda_ * min(r_t, trace_clip)
        delta_t = rho_t (reward_t + discount * V_{t+1} - V_t)
        e_t     = delta_t + discount * c_t * e_{t+1}
        v_t     = V_t + e_t

    `rho_clip` selects the policy whose value is estimated: the current policy if it is infinite, otherwise a policy
    between the current one and the rollout policy. `trace_clip`, at most 1 / discount, only changes the speed of
    convergence. If both policies are equal and both clips are at least 1, the target is the lambda-return, `gae` + V.
    Log-ratios are clamped to +-20. Shapes: [rows, time] each; log-probabilities in nats, the others in units of reward.
    Source: IMPALA, Espeholt et al. 2018 (1802.01561, eq. 1).
    """
    index, ratio = action_index(action), masked(token_ratio(logp, rollout_logp), action)
    value, ratio = segment_sum(masked(value, action), index), segment_sum(ratio, index)
    next_value = torch.nn.functional.pad(value[..., 1:], (0, 1))
    delta = ratio.clamp(max=rho_clip) * (segment_sum(reward, index) + discount * next_value - value)
    error = reverse_recurrence(delta, discount * lambda_ * ratio.clamp(max=trace_clip))
    return gather_to_actions(value + error, index, action)


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
    """Compute the V-trace advantages of a policy, which the policy gradient multiplies.

        A_t = rho_t (reward_t + discount * v_{t+1} - V_t)

    v is `vtrace_target`, and rho_t = min(exp(logp_t - rollout_logp_t), rho_clip), with the log-ratio clamped to +-20.
    Shapes: [rows, time] each; log-probabilities in nats, the others in units of reward.
    Source: IMPALA, Espeholt et al. 2018 (1802.01561, sec. 4.2).
    """
    index, ratio = action_index(action), masked(token_ratio(logp, rollout_logp), action).clamp(max=rho_clip)
    next_target = torch.nn.functional.pad(segment_sum(masked(target, action), index)[..., 1:], (0, 1))
    error = segment_sum(reward, index) + discount * next_target - segment_sum(masked(value, action), index)
    return ratio * gather_to_actions(error, index, action)


def _discounted_sum(x: TokenFloat, action: TokenBool, start: RowInt, decay: float | torch.Tensor) -> TokenFloat:
    """Compute y_t = x_t + decay * y_{t+1} at each action token. Values at other tokens are arbitrary.

    x_t includes the values of `x` at the other tokens that count at action token t. The row is not compacted. The decay
    applies to the step onto an action token, and other tokens have a decay of 1. The step onto the first action token,
    at `start`, has no decay either: y at the first position of the row is then the sum at the first action token.
    """
    start = start.unsqueeze(-1)
    is_next_action = torch.nn.functional.pad(action.scatter(-1, start, 0)[..., 1:], (0, 1))
    decay = decay * torch.ones_like(x[..., :1])  # A Python float would become float32 in `maximum` with a uint8 mask.
    # The decay is at most 1, so the maximum with a mask of 0 and 1 selects 1 at steps without decay.
    y = reverse_recurrence(x, torch.maximum(decay, as_bytes(~is_next_action)))
    return y.scatter(-1, start, y[..., :1])
