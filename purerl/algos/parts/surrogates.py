"""Policy losses of each token, to be minimized, and the ratios that they use.

If `logp` equals `old_logp`, the gradient of each loss is the policy gradient, the gradient of ``-advantage * logp``.
The losses differ if the policy has changed since the rows were sampled. The ratio r = exp(logp - old_logp) measures
this change.

Arguments are [rows, time]. `logp` is under the current policy, with gradient; `old_logp` is under the policy at the
start of the update; both are in nats. `advantage` is in units of reward. A log-ratio is clamped to +-20 before `exp`,
so that nothing overflows; beyond that a token has no gradient. A log-probability of -inf is replaced as in
`log_ratios`. `clip_low` and `clip_high` are always offsets from 1; a `clip_high` of inf does not clip.
"""

from __future__ import annotations

import torch

from purerl.algos.parts.elementwise import alike, clip
from purerl.algos.parts.log_ratios import finite_logp, log_ratio
from purerl.kernels.masks import count_true, masked
from purerl.types import RowFloat, TokenBool, TokenFloat

__all__ = [
    "LOG_RATIO_BOUND",
    "clip_high_indicator",
    "clip_indicator",
    "clip_low_indicator",
    "clip_surrogate",
    "dual_clip_surrogate",
    "geometric_mean_ratio",
    "importance_surrogate",
    "policy_gradient",
    "ppo_clip",
    "sequence_log_ratio",
    "sequence_product_ratio",
    "sequence_ratio",
    "smoothed_surrogate",
    "soft_gate_surrogate",
    "token_ratio",
]

LOG_RATIO_BOUND = 20.0
"""The bound of a log-ratio before `exp`, nats."""


def token_ratio(logp: TokenFloat, old_logp: TokenFloat) -> TokenFloat:
    """Compute the importance ratio of each token.

        r_t = exp(logp_t - old_logp_t)

    The log-ratio is clamped to +-20. Shapes: [rows, time] each, in nats.

    >>> token_ratio(torch.tensor([[-1.0, 900.0]]), torch.tensor([[-1.0, -900.0]])).log()
    tensor([[ 0., 20.]])
    """
    return log_ratio(logp, old_logp).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def sequence_ratio(logp: TokenFloat, old_logp: TokenFloat, mask: TokenBool) -> TokenFloat:
    """Compute the sequence-level ratio of GSPO: the geometric mean of the ratios of the row's counted tokens.

        dbar_i = (1 / n_i) sum_t m_it (logp_it - old_logp_it)
        r_it   = exp(sg(dbar_i) + logp_it - sg(logp_it))

    Every token of a row has the value exp(dbar_i). Its gradient goes to its own `logp`, so that the mean over the row's
    counted tokens has the gradient of exp(dbar_i). A row without counted tokens has dbar_i = 0. The exponent is clamped
    to +-20. Shapes: [rows, time] each, in nats. Source: GSPO (2507.18071, eq. 7).
    """
    tokens = count_true(mask).unsqueeze(-1).clamp(min=1)
    mean = (masked(log_ratio(logp, old_logp), mask).sum(-1, keepdim=True) / tokens).detach()
    return (mean + log_ratio(logp, logp.detach())).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def sequence_log_ratio(logp: TokenFloat, old_logp: TokenFloat, mask: TokenBool) -> RowFloat:
    """Compute the log-ratio of each row: the sum of the log-ratios of its counted tokens.

        L_i = sum_t m_it (logp_it - old_logp_it)

    It is not clamped, and 0 for a row without counted tokens. Shapes: [rows, time] each; the result is [rows], in nats.

    >>> logp, mask = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[True, True, False]])
    >>> sequence_log_ratio(logp, torch.zeros(1, 3), mask)
    tensor([3.])
    """
    return masked(log_ratio(logp, old_logp), mask).sum(-1)


def sequence_product_ratio(logp: TokenFloat, old_logp: TokenFloat, mask: TokenBool) -> TokenFloat:
    """Compute the importance ratio of each row: the product of the ratios of its counted tokens.

        L_i  = sum_t m_it (logp_it - old_logp_it)
        r_it = exp(sg(L_i) + logp_it - sg(logp_it))

    Every token of a row has the value exp(L_i). Its gradient goes to its own `logp`, so that the sum over the row's
    counted tokens has the gradient of exp(L_i). A row without counted tokens has L_i = 0. The exponent is clamped to
    +-20. `sequence_ratio` takes the geometric mean instead of the product. Shapes: [rows, time] each, in nats.
    Source: RLOO (2402.14740), in which a row is one action.

    >>> logp, mask = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[True, True, False]])
    >>> sequence_product_ratio(logp, torch.zeros(1, 3), mask).log()
    tensor([[3., 3., 3.]])
    """
    total = sequence_log_ratio(logp, old_logp, mask).detach().unsqueeze(-1)
    return (total + log_ratio(logp, logp.detach())).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def geometric_mean_ratio(
    logp: TokenFloat,
    old_logp: TokenFloat,
    advantage: TokenFloat,
    mask: TokenBool,
    *,
    log_clip_low: float,
    log_clip_high: float,
) -> TokenFloat:
    """Compute the ratio of GMPO: the geometric mean of the row's ratios, with each log-ratio clipped first.

        c_it = min(logp_it - old_logp_it, log_clip_high)    if A_it > 0
               max(logp_it - old_logp_it, -log_clip_low)    else
        r_it = exp((1 / n_i) sum_t m_it c_it)

    Every token of a row has the same value. Its gradient goes to all counted tokens of the row that are not clipped. A
    row without counted tokens has the ratio 1. The mean is clamped to +-20. Shapes: [rows, time] each; the clip bounds
    are in nats. Source: GMPO (2507.20673).
    """
    difference = log_ratio(logp, old_logp)
    clipped = torch.where(advantage > 0, difference.clamp(max=log_clip_high), difference.clamp(min=-log_clip_low))
    tokens = count_true(mask).unsqueeze(-1).clamp(min=1)
    mean = masked(clipped, mask).sum(-1, keepdim=True) / tokens
    return mean.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp().expand_as(logp)


def policy_gradient(logp: TokenFloat, advantage: TokenFloat) -> TokenFloat:
    """Compute the policy gradient loss.

        l = -A logp

    Its gradient is only correct for rows that the current policy sampled. Shapes: [rows, time] each.
    Source: REINFORCE (Williams 1992).
    """
    return -alike(advantage, logp) * finite_logp(logp)


def importance_surrogate(logp: TokenFloat, old_logp: TokenFloat, advantage: TokenFloat) -> TokenFloat:
    """Compute the policy gradient loss with the importance ratio of each token, without a clip.

        l = -A r

    Shapes: [rows, time] each.
    """
    return -alike(advantage, logp) * token_ratio(logp, old_logp)


def clip_surrogate(ratio: TokenFloat, advantage: TokenFloat, *, clip_low: float, clip_high: float) -> TokenFloat:
    """Compute the clipped surrogate of PPO, for any ratio.

        l = max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))

    The gradient is 0 if A > 0 and r > 1 + clip_high, or if A < 0 and r < 1 - clip_low: the probability of the token has
    already changed enough in the direction of the advantage. A change in the other direction is never clipped. Shapes:
    [rows, time] each. Source: Schulman et al. 2017 (1707.06347, eq. 7); two offsets as in DAPO (2503.14476).

    >>> clip_surrogate(torch.tensor([[1.5, 0.5]]), torch.tensor([[2.0, 2.0]]), clip_low=0.2, clip_high=0.2)
    tensor([[-2.4000, -1.0000]])
    """
    advantage = alike(advantage, ratio)
    return torch.maximum(-advantage * ratio, -advantage * clip(ratio, 1 - clip_low, 1 + clip_high))


def clip_indicator(ratio: TokenFloat, advantage: TokenFloat, *, clip_low: float, clip_high: float) -> TokenFloat:
    """Return 1 at tokens that `clip_surrogate` clips, which have no gradient, and 0 at other tokens.

    Shapes: [rows, time] each. The result has the dtype of `ratio`.
    """
    low = clip_low_indicator(ratio, advantage, clip_low=clip_low)
    return low + clip_high_indicator(ratio, advantage, clip_high=clip_high)


def clip_low_indicator(ratio: TokenFloat, advantage: TokenFloat, *, clip_low: float) -> TokenFloat:
    """Return 1 at tokens that `clip_surrogate` clips from below: A < 0 and r < 1 - clip_low. 0 at other tokens.

    Shapes: [rows, time] each. The result has the dtype of `ratio`.
    """
    return ((advantage < 0) & (ratio < 1 - clip_low)).to(ratio.dtype)


def clip_high_indicator(ratio: TokenFloat, advantage: TokenFloat, *, clip_high: float) -> TokenFloat:
    """Return 1 at tokens that `clip_surrogate` clips from above: A > 0 and r > 1 + clip_high. 0 at other tokens.

    Shapes: [rows, time] each. The result has the dtype of `ratio`.
    """
    return ((advantage > 0) & (ratio > 1 + clip_high)).to(ratio.dtype)


def dual_clip_surrogate(
    ratio: TokenFloat, advantage: TokenFloat, *, clip_low: float, clip_high: float, ratio_cap: float
) -> TokenFloat:
    """Compute the dual-clipped surrogate: `clip_surrogate` of min(r, ratio_cap), with ratio_cap > 1 + clip_high.

        l = max(-A min(r, ratio_cap), -A clip(r, 1 - clip_low, 1 + clip_high))

    `clip_surrogate` has no bound if A < 0 and r is large. Here such a token has no gradient beyond the cap. If A > 0,
    the cap changes nothing, because r is already clipped at 1 + clip_high. Shapes: [rows, time] each.

    Two papers write the same function in different ways: dual clip (1912.09729; cap 3) as min(clip_surrogate, -A
    ratio_cap) where A < 0, and the two-sided clip of INTELLECT-2 (2505.07291; cap 4) as above.

    >>> clip = dict(clip_low=0.2, clip_high=0.2, ratio_cap=3.0)
    >>> dual_clip_surrogate(torch.tensor([[2.0, 9.0, 9.0]]), torch.tensor([[-1.0, -1.0, 1.0]]), **clip)
    tensor([[ 2.0000,  3.0000, -1.2000]])
    """
    return clip_surrogate(ratio.clamp(max=ratio_cap), advantage, clip_low=clip_low, clip_high=clip_high)


def smoothed_surrogate(ratio: TokenFloat, advantage: TokenFloat, *, smoothing: float) -> TokenFloat:
    """Compute the surrogate of PSPO: the ratio of a policy that is mixed with the old one, in place of a clip.

        l = -A ((1 - smoothing) r + smoothing)

    The mixture (1 - smoothing) pi + smoothing pi_old has this ratio to pi_old. The gradient is that of -A r times
    1 - smoothing, and 0 nowhere. Shapes: [rows, time] each.

    >>> smoothed_surrogate(torch.tensor([[3.0]]), torch.tensor([[-1.0]]), smoothing=0.25)
    tensor([[2.5000]])
    """
    return -alike(advantage, ratio) * ((1 - smoothing) * ratio + smoothing)


def soft_gate_surrogate(
    ratio: TokenFloat, advantage: TokenFloat, *, gate_positive: float, gate_negative: float
) -> TokenFloat:
    """Compute the surrogate of SAPO, which has a soft gate instead of a clip.

        g = gate_positive    if A > 0
            gate_negative    else
        l = -(4 / g) sigmoid(g (r - 1)) A

    The gradient is the gradient of -A r times 4 sigmoid(..) (1 - sigmoid(..)). This factor is 1 at r = 1 and falls
    smoothly on both sides, faster for a larger g. Shapes: [rows, time] each. Source: SAPO (2511.20347).

    >>> ratio, advantage = torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, -2.0]])
    >>> soft_gate_surrogate(ratio, advantage, gate_positive=1.0, gate_negative=2.0)
    tensor([[-4.,  2.]])
    """
    positive = torch.sigmoid(gate_positive * (ratio - 1)) * (4 / gate_positive)
    negative = torch.sigmoid(gate_negative * (ratio - 1)) * (4 / gate_negative)
    return -alike(advantage, ratio) * torch.where(advantage > 0, positive, negative)


def ppo_clip(
    logp: TokenFloat, old_logp: TokenFloat, advantage: TokenFloat, *, clip_low: float, clip_high: float
) -> TokenFloat:
    """Compute the loss of PPO: `clip_surrogate` of `token_ratio`.

        l = max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))

    Shapes: [rows, time] each. Source: Schulman et al. 2017 (1707.06347, eq. 7).
    """
    return clip_surrogate(token_ratio(logp, old_logp), advantage, clip_low=clip_low, clip_high=clip_high)
