"""Detached weights of the policy gradient.

    l = -sg(w) A logp

A clipped surrogate has no gradient at clipped tokens. A detached weight sets the size of the gradient at each token
directly. The value of the loss then has no meaning of its own, only the gradient does. If the policy has not changed,
each of these weights is 1.

Arguments are [rows, time]. `logp` is under the current policy, `old_logp` under the policy at the start of the update,
`rollout_logp` under the rollout policy; all are in nats. `advantage` is in units of reward. A log-ratio is clamped to
+-20, or bounded from above, before `exp`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from purerl.algos.parts.corrections import banded_ratio
from purerl.algos.parts.elementwise import add_eps, clip
from purerl.algos.parts.log_ratios import log_ratio
from purerl.algos.parts.surrogates import (
    LOG_RATIO_BOUND,
    clip_high_indicator,
    clip_indicator,
    clip_low_indicator,
    sequence_log_ratio,
    token_ratio,
)
from purerl.types import RowFloat, TokenBool, TokenFloat

__all__ = [
    "asymmetric_weight",
    "binary_kl",
    "binary_tv",
    "clipped_weight",
    "complement_ratio",
    "complement_weight",
    "divergence_banded_weight",
    "divergence_masked_weight",
    "double_sided_weight",
    "gamma_weight",
    "gradient_preserving_weight",
    "symmetric_binary_kl",
    "tapered_weight",
    "unbounded_positive_weight",
]

EPS = 1e-8
"""Added to a probability before its logarithm is taken."""


def clipped_weight(logp: TokenFloat, old_logp: TokenFloat, *, clip_low: float, clip_high: float) -> TokenFloat:
    """Compute the weight of CISPO: the clipped ratio. Every token has a gradient.

        w = clip(r, 1 - clip_low, 1 + clip_high)

    Shapes: [rows, time] each. Source: CISPO (2506.13585).

    >>> clipped_weight(torch.tensor([[2.0, -9.0]]), torch.zeros(1, 2), clip_low=0.5, clip_high=4.0)
    tensor([[5.0000, 0.5000]])
    """
    return clip(token_ratio(logp, old_logp), 1 - clip_low, 1 + clip_high)


def asymmetric_weight(
    logp: TokenFloat,
    old_logp: TokenFloat,
    advantage: TokenFloat,
    *,
    clip_low: float,
    clip_high: float,
    weight_cap: float,
) -> TokenFloat:
    """Compute the weight of ASPO: the inverse ratio if A > 0, the ratio if A < 0, and 0 at tokens that PPO clips.

        w = 0                         if (A > 0, r > 1 + clip_high) or (A < 0, r < 1 - clip_low)
            min(1 / r, weight_cap)    else if A > 0
            min(r, weight_cap)        else

    With the ratio as a weight, tokens with A > 0 get a larger gradient the more their probability has already grown.
    The inverse ratio gives the larger gradient to tokens whose probability has grown less. Shapes: [rows, time] each.
    Source: ASPO (2510.06062).

    >>> logp, clip = torch.tensor([[0.5, 2.0]]).log(), dict(clip_low=0.2, clip_high=0.2, weight_cap=3.0)
    >>> asymmetric_weight(logp, torch.zeros(1, 2), torch.ones(1, 2), **clip)
    tensor([[2., 0.]])
    """
    ratio = token_ratio(logp, old_logp)
    weight = torch.where(advantage > 0, 1 / ratio, ratio).clamp(max=weight_cap)
    return weight * (1 - clip_indicator(ratio, advantage, clip_low=clip_low, clip_high=clip_high))


def gradient_preserving_weight(
    logp: TokenFloat,
    old_logp: TokenFloat,
    advantage: TokenFloat,
    *,
    clip_low: float,
    clip_high: float,
    low_coef: float,
    high_coef: float,
) -> TokenFloat:
    """Compute the weight of CE-GPPO: the ratio, and at tokens that PPO clips the bound times a coefficient.

        w = low_coef (1 - clip_low)      if A < 0 and r < 1 - clip_low
            high_coef (1 + clip_high)    if A > 0 and r > 1 + clip_high
            r                            else

    With both coefficients 0, the gradient is that of PPO. Shapes: [rows, time] each. Source: CE-GPPO (2509.20712).

    >>> logp, clip = torch.tensor([[0.5, 2.0]]).log(), dict(clip_low=0.2, clip_high=0.2)
    >>> gradient_preserving_weight(logp, torch.zeros(1, 2), -torch.ones(1, 2), **clip, low_coef=0.5, high_coef=1.0)
    tensor([[0.4000, 2.0000]])
    """
    ratio = token_ratio(logp, old_logp)
    is_low = clip_low_indicator(ratio, advantage, clip_low=clip_low)
    is_high = clip_high_indicator(ratio, advantage, clip_high=clip_high)
    preserved = is_low * low_coef * (1 - clip_low) + is_high * high_coef * (1 + clip_high)
    return (1 - is_low - is_high) * ratio + preserved


def double_sided_weight(logp: TokenFloat, rollout_logp: TokenFloat, *, clip_low: float, clip_high: float) -> TokenFloat:
    """Compute the weight of double-sided importance sampling: the ratio in a band, and 0 outside of it.

        r = exp(logp - rollout_logp)
        w = r    if 1 - clip_low <= r <= 1 + clip_high
            0    else

    Shapes: [rows, time] each. Source: the loss `rollout_is` of SkyRL.

    >>> logp = torch.tensor([[0.5, 1.1, 2.0]]).log()
    >>> double_sided_weight(logp, torch.zeros(1, 3), clip_low=0.2, clip_high=0.2)
    tensor([[0.0000, 1.1000, 0.0000]])
    """
    return banded_ratio(token_ratio(logp, rollout_logp), min_ratio=1 - clip_low, max_ratio=1 + clip_high)


def complement_ratio(logp: TokenFloat, rollout_logp: TokenFloat, *, eps: float) -> TokenFloat:
    """Compute the ratio of the probabilities that the token is another one, smoothed.

        w = (1 + eps - mu) / (1 + eps - pi)

    pi = exp(logp) and mu = exp(rollout_logp). It is above 1 if the token has become more likely, and between
    eps / (1 + eps) and (1 + eps) / eps. At unlikely tokens it is near 1, however much their own ratio changes. `eps` is
    above 0. Shapes: [rows, time] each. Source: BPO (2609.15987).

    >>> complement_ratio(torch.tensor([[0.9, 0.02]]).log(), torch.tensor([[0.5, 0.01]]).log(), eps=0.1)
    tensor([[3.0000, 1.0093]])
    """
    pi, mu = logp.clamp(max=0).exp(), rollout_logp.clamp(max=0).exp()
    return (1 + eps - mu) / (1 + eps - pi)


def complement_weight(
    logp: TokenFloat,
    rollout_logp: TokenFloat,
    advantage: TokenFloat,
    *,
    eps: float,
    clip_low: float,
    clip_high: float,
    weight_cap: float,
) -> TokenFloat:
    """Compute the weight of BPO: `complement_ratio`, capped, and 0 where it has changed in the advantage's direction.

        w = (1 + eps - mu) / (1 + eps - pi)
        v = 0                     if (A > 0, w > 1 + clip_high) or (A < 0, w < 1 - clip_low)
            min(w, weight_cap)    else

    Shapes: [rows, time] each. Source: BPO (2609.15987).

    >>> logp, clip = torch.tensor([[0.9, 0.55, 0.2]]).log(), dict(clip_low=0.2, clip_high=0.28, weight_cap=3.0)
    >>> complement_weight(logp, torch.full((1, 3), 0.5).log(), torch.tensor([[1.0, 1.0, -1.0]]), eps=0.1, **clip)
    tensor([[0.0000, 1.0909, 0.0000]])
    """
    ratio = complement_ratio(logp, rollout_logp, eps=eps)
    return ratio.clamp(max=weight_cap) * (1 - clip_indicator(ratio, advantage, clip_low=clip_low, clip_high=clip_high))


def unbounded_positive_weight(
    logp: TokenFloat, old_logp: TokenFloat, advantage: TokenFloat, *, clip_low: float, ratio_cap: float
) -> TokenFloat:
    """Compute the weight of UP-GRPO: 1 if A > 0, and else the ratio where PPO with dual clip has a gradient.

        w = 1    if A > 0
            r    else if 1 - clip_low <= r <= ratio_cap
            0    else

    Shapes: [rows, time] each. Source: UP-GRPO (2607.06987).

    >>> logp, advantage = torch.tensor([[9.0, 0.5, 2.0, 9.0]]).log(), torch.tensor([[1.0, -1.0, -1.0, -1.0]])
    >>> unbounded_positive_weight(logp, torch.zeros(1, 4), advantage, clip_low=0.2, ratio_cap=3.0)
    tensor([[1., 0., 2., 0.]])
    """
    bounded = banded_ratio(token_ratio(logp, old_logp), min_ratio=1 - clip_low, max_ratio=ratio_cap)
    return torch.where(advantage > 0, 1, bounded)


def divergence_masked_weight(
    logp: TokenFloat,
    rollout_logp: TokenFloat,
    advantage: TokenFloat,
    *,
    divergence: Callable[[TokenFloat, TokenFloat], TokenFloat],
    divergence_low: float,
    divergence_high: float,
    ratio_cap: float,
) -> TokenFloat:
    """Compute the weight of DPPO: the capped ratio, and 0 if the divergence D at the token is too large.

        r = exp(logp - rollout_logp)
        w = 0                    if A > 0, r > 1, D > divergence_high
            0                    if A < 0, r < 1, D > divergence_low
            min(r, ratio_cap)    else

    `divergence` is `binary_tv` or `binary_kl`. It measures the distance of the distributions, which the ratio does not:
    a ratio of 10 at a probability of 1e-4 changes the distribution very little. Shapes: [rows, time] each.
    Source: DPPO (2602.04879).
    """
    distance = divergence(logp, rollout_logp)
    is_far = torch.where(advantage > 0, distance > divergence_high, distance > divergence_low)
    is_forward = advantage * log_ratio(logp, rollout_logp) > 0
    return torch.where(is_far & is_forward, 0, token_ratio(logp, rollout_logp).clamp(max=ratio_cap))


def divergence_banded_weight(
    logp: TokenFloat,
    rollout_logp: TokenFloat,
    *,
    divergence: Callable[[TokenFloat, TokenFloat], TokenFloat],
    divergence_low: float,
    divergence_high: float,
    ratio_cap: float,
) -> TokenFloat:
    """Compute the weight of DPPO with a mask that does not depend on the advantage.

        r = exp(logp - rollout_logp)
        w = 0                    if r > 1, D > divergence_high
            0                    if r < 1, D > divergence_low
            min(r, ratio_cap)    else

    A token that has moved too far against its advantage is dropped too. Shapes: [rows, time] each.
    Source: prime-rl's loss with `binary_tv`.
    """
    distance, ratio = divergence(logp, rollout_logp), token_ratio(logp, rollout_logp)
    is_far = torch.where(ratio > 1, distance > divergence_high, distance > divergence_low)
    return torch.where(is_far, 0, ratio.clamp(max=ratio_cap))


def binary_tv(logp: TokenFloat, rollout_logp: TokenFloat) -> TokenFloat:
    """Compute the total variation of the binary distribution "this token, or any other".

        p = exp(logp)
        q = exp(rollout_logp)
        D = abs(p - q)

    Shapes: [rows, time] each; the result is a probability. Source: DPPO (2602.04879).

    >>> binary_tv(torch.tensor([[0.5]]).log(), torch.tensor([[0.75]]).log())
    tensor([[0.2500]])
    """
    return (_probability(logp) - _probability(rollout_logp)).abs()


def binary_kl(logp: TokenFloat, rollout_logp: TokenFloat) -> TokenFloat:
    """Compute KL(rollout policy || policy) of the binary distribution "this token, or any other".

        p = exp(logp)
        q = exp(rollout_logp)
        D = q log(q / p) + (1 - q) log((1 - q) / (1 - p))

    1e-8 is added to 1 - q and 1 - p. Shapes: [rows, time] each; the result is in nats. Source: DPPO (2602.04879).

    >>> binary_kl(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.5, 0.25]]).log()).round(decimals=4)
    tensor([[0.0000, 0.1308]])
    """
    p, q = _probability(logp), _probability(rollout_logp)
    return q * log_ratio(rollout_logp, logp) + (1 - q) * (add_eps(1 - q, EPS).log() - add_eps(1 - p, EPS).log())


def symmetric_binary_kl(logp: TokenFloat, rollout_logp: TokenFloat) -> TokenFloat:
    """Compute the larger one of both directions of `binary_kl`.

        D = max(KL(rollout policy || policy), KL(policy || rollout policy))

    Shapes: [rows, time] each; the result is in nats. Source: KPop (Guo et al. 2026).

    >>> symmetric_binary_kl(torch.tensor([[0.5, 0.25]]).log(), torch.tensor([[0.25, 0.5]]).log()).round(decimals=4)
    tensor([[0.1438, 0.1438]])
    """
    return torch.maximum(binary_kl(logp, rollout_logp), binary_kl(rollout_logp, logp))


def _probability(logp: TokenFloat) -> TokenFloat:
    return logp.clamp(max=0).exp()


def gamma_weight(
    logp: TokenFloat,
    rollout_logp: TokenFloat,
    advantage: TokenFloat,
    mask: TokenBool,
    *,
    power_positive: float,
    decay_positive: float,
    power_negative: float,
    decay_negative: float,
) -> TokenFloat:
    """Compute the weight of VESPO: a function of the importance ratio W of the row, with the shape of a gamma density.

        W = exp(sum_t m_it (logp_it - rollout_logp_it))
        w = W^power * exp(decay * (1 - W))

    It is 1 at W = 1, has its maximum at W = power / decay, and falls to 0 on both sides, so that rows with a very small
    or a very large ratio have little effect. The power and the decay are the positive ones if A >= 0, and the negative
    ones if A < 0. The sum is clamped to +-20. Shapes: [rows, time] each. Source: VESPO (2602.10693).
    """
    total = sequence_log_ratio(logp, rollout_logp, mask).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    positive = _gamma(total, power=power_positive, decay=decay_positive)
    negative = _gamma(total, power=power_negative, decay=decay_negative)
    return torch.where(advantage >= 0, positive.unsqueeze(-1), negative.unsqueeze(-1))


def _gamma(total: RowFloat, *, power: float, decay: float) -> RowFloat:
    return (power * total - decay * total.expm1()).exp()


def tapered_weight(logp: TokenFloat, rollout_logp: TokenFloat, advantage: TokenFloat, mask: TokenBool) -> TokenFloat:
    """Compute the weight of TOPR (tapered off-policy REINFORCE), from the importance ratio W of the row.

        W = exp(sum_t m_it (logp_it - rollout_logp_it))
        w = 1            if A >= 0
            min(W, 1)    else

    A row with a positive advantage always has the full weight. The weight of a row with a negative advantage falls to 0
    with its probability. Without this taper, its log-probability would decrease without bound. Shapes: [rows, time]
    each. Source: TOPR (2503.14286).

    >>> logp, advantage, mask = torch.tensor([[-1.0, 0.0]]), torch.tensor([[1.0, -1.0]]), torch.tensor([[True, True]])
    >>> tapered_weight(logp, torch.zeros(1, 2), advantage, mask)
    tensor([[1.0000, 0.3679]])
    """
    weight = sequence_log_ratio(logp, rollout_logp, mask).clamp(max=0).exp()
    return torch.where(advantage >= 0, 1, weight.unsqueeze(-1))
