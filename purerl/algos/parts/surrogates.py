"""Policy losses at each token, to be minimized.

Where `logp` and `old_logp` agree, the gradient of each is that of ``-advantage * logp``: the policy gradient. They
differ in what they do once the policy has moved away from the one that the rows were sampled from. How far it has moved
is measured by the ratio r = exp(logp - old_logp).

Arguments are [rows, time]: `logp` under the policy now, with gradient, and `old_logp` under it when the update began,
in nats; `advantage` in units of reward. A log-ratio is clamped to +-20 before it is exponentiated, so that nothing
overflows; beyond that a token has no gradient. `clip_low` and `clip_high` are always offsets from 1.
"""

from __future__ import annotations

import torch

from purerl.kernels.masks import count_true
from purerl.types import RowFloat, TokenBool, TokenFloat

__all__ = [
    "LOG_RATIO_BOUND",
    "clip_surrogate",
    "clipped",
    "dual_clip_surrogate",
    "geometric_ratio",
    "importance_surrogate",
    "policy_gradient",
    "ppo_clip",
    "sequence_log_ratio",
    "sequence_ratio",
    "soft_gate_surrogate",
    "token_ratio",
]

LOG_RATIO_BOUND = 20.0


def token_ratio(logp: TokenFloat, old_logp: TokenFloat) -> TokenFloat:
    """How much likelier each token has become: r = exp(logp - old_logp).

    >>> token_ratio(torch.tensor([[-1.0, 900.0]]), torch.tensor([[-1.0, -900.0]])).log()
    tensor([[ 0., 20.]])
    """
    return (logp - old_logp).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def sequence_ratio(logp: TokenFloat, old_logp: TokenFloat, mask: TokenBool) -> TokenFloat:
    """How much likelier each row has become, per token: GSPO's ratio (2507.18071, eq. 7).

        dbar_i = (1/n_i) sum_t m_it (logp_it - old_logp_it)
        r_it   = exp(sg(dbar_i) + logp_it - sg(logp_it))

    Every token of a row has the value exp(dbar_i); its gradient goes to its own `logp`, so that the mean over the row's
    counted tokens has the gradient of exp(dbar_i). A row without counted tokens has dbar_i = 0.
    """
    tokens = count_true(mask).unsqueeze(-1).clamp(min=1)
    mean = (torch.where(mask, logp - old_logp, 0).sum(-1, keepdim=True) / tokens).detach()
    return (mean + logp - logp.detach()).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def sequence_log_ratio(logp: TokenFloat, old_logp: TokenFloat, mask: TokenBool) -> RowFloat:
    """How much likelier each row has become, as a whole: sum_t m_it (logp_it - old_logp_it), nats; not clamped.

    >>> logp, mask = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[True, True, False]])
    >>> sequence_log_ratio(logp, torch.zeros(1, 3), mask)
    tensor([3.])
    """
    return torch.where(mask, logp - old_logp, 0).sum(-1)


def geometric_ratio(
    logp: TokenFloat,
    old_logp: TokenFloat,
    advantage: TokenFloat,
    mask: TokenBool,
    *,
    log_clip_low: float,
    log_clip_high: float,
) -> TokenFloat:
    """How much likelier each row has become, per token, each token clipped first: GMPO's ratio (2507.20673).

        c_it = min(logp_it - old_logp_it, log_clip_high) where A_it > 0, else max(logp_it - old_logp_it, -log_clip_low)
        r_it = exp((1/n_i) sum_t m_it c_it)

    Every token of a row has the same value, and its gradient goes to all of them that are not clipped. A row without
    counted tokens has the ratio 1.
    """
    moved = logp - old_logp
    near = torch.where(advantage > 0, moved.clamp(max=log_clip_high), moved.clamp(min=-log_clip_low))
    tokens = count_true(mask).unsqueeze(-1).clamp(min=1)
    mean = torch.where(mask, near, 0).sum(-1, keepdim=True) / tokens
    return mean.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp().expand_as(logp)


def policy_gradient(logp: TokenFloat, advantage: TokenFloat) -> TokenFloat:
    """-A logp: REINFORCE (Williams 1992). The rows must come from the policy as it is now."""
    return -advantage * logp


def importance_surrogate(logp: TokenFloat, old_logp: TokenFloat, advantage: TokenFloat) -> TokenFloat:
    """-A r: the policy gradient with each token's importance weight, unclipped."""
    return -advantage * token_ratio(logp, old_logp)


def clip_surrogate(ratio: TokenFloat, advantage: TokenFloat, *, clip_low: float, clip_high: float) -> TokenFloat:
    """max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)): the clipped surrogate, for any kind of ratio.

    There is no gradient where the advantage is positive and r above 1 + clip_high, or negative and r below
    1 - clip_low: the token has moved far enough in the direction that it was asked to. Moving back is never clipped.
    Source: Schulman et al. 2017 (1707.06347, eq. 7); two offsets as in DAPO (2503.14476).

    >>> clip_surrogate(torch.tensor([[1.5, 0.5]]), torch.tensor([[2.0, 2.0]]), clip_low=0.2, clip_high=0.2)
    tensor([[-2.4000, -1.0000]])
    """
    return torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - clip_low, 1 + clip_high))


def clipped(ratio: TokenFloat, advantage: TokenFloat, *, clip_low: float, clip_high: float) -> TokenFloat:
    """1 where `clip_surrogate` is clipped, so that the token has no gradient; 0 elsewhere."""
    surrogate = clip_surrogate(ratio, advantage, clip_low=clip_low, clip_high=clip_high)
    return (surrogate > -advantage * ratio).to(ratio.dtype)


def dual_clip_surrogate(
    ratio: TokenFloat, advantage: TokenFloat, *, clip_low: float, clip_high: float, ratio_cap: float
) -> TokenFloat:
    """`clip_surrogate` of min(r, ratio_cap), with ratio_cap above 1 + clip_high.

    `clip_surrogate` has no bound where the advantage is negative and r large: the token has become likelier, though it
    was bad. Beyond the cap it has no gradient either. Where the advantage is positive nothing changes, for there r is
    clipped at 1 + clip_high already.

    It is one function with two names. Dual clip (1912.09729; cap 3) writes it min(clip_surrogate, -A ratio_cap) where
    A < 0, and the two-sided clip of INTELLECT-2 (2505.07291; cap 4) max(-A min(r, ratio_cap), -A clip(r, ...)).

    >>> clip = dict(clip_low=0.2, clip_high=0.2, ratio_cap=3.0)
    >>> dual_clip_surrogate(torch.tensor([[2.0, 9.0, 9.0]]), torch.tensor([[-1.0, -1.0, 1.0]]), **clip)
    tensor([[ 2.0000,  3.0000, -1.2000]])
    """
    return clip_surrogate(ratio.clamp(max=ratio_cap), advantage, clip_low=clip_low, clip_high=clip_high)


def soft_gate_surrogate(
    ratio: TokenFloat, advantage: TokenFloat, *, gate_positive: float, gate_negative: float
) -> TokenFloat:
    """-(4 / g) sigmoid(g (r - 1)) A, with g = gate_positive where A > 0, else gate_negative.

    The gradient is that of -A r, times 4 sigmoid(..) (1 - sigmoid(..)): 1 at r = 1, and falling smoothly on both sides,
    the faster the larger g is. Source: SAPO (2511.20347).

    >>> ratio, advantage = torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, -2.0]])
    >>> soft_gate_surrogate(ratio, advantage, gate_positive=1.0, gate_negative=2.0)
    tensor([[-4.,  2.]])
    """
    positive = torch.sigmoid(gate_positive * (ratio - 1)) * (4 / gate_positive)
    negative = torch.sigmoid(gate_negative * (ratio - 1)) * (4 / gate_negative)
    return -advantage * torch.where(advantage > 0, positive, negative)


def ppo_clip(
    logp: TokenFloat, old_logp: TokenFloat, advantage: TokenFloat, *, clip_low: float, clip_high: float
) -> TokenFloat:
    """PPO's loss: `clip_surrogate` of `token_ratio`."""
    return clip_surrogate(token_ratio(logp, old_logp), advantage, clip_low=clip_low, clip_high=clip_high)
