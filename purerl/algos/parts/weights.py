"""Weights of the policy gradient: how much each token's -A logp counts.

    l = -sg(w) A logp               sg: the gradient stops

The gradient of a clipped surrogate vanishes at a token that has moved too far. Here it is chosen freely: a weight says
how large it is, token by token, and no more; the loss is not the derivative's integral, and its value means little.
Where the policy has not moved, each of these weights is 1.

`logp` is the policy's now, `old_logp` its own when the update began, `rollout_logp` the sampler's, in nats; `advantage`
in units of reward; all [rows, time]. A log-ratio is clamped to +-20, or bounded from above, before it is exponentiated.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from purerl.algos.parts.surrogates import LOG_RATIO_BOUND, clipped, sequence_log_ratio, token_ratio
from purerl.types import RowFloat, TokenBool, TokenFloat

__all__ = [
    "clipped_weight",
    "flipped_weight",
    "gamma_weight",
    "probability_gap",
    "tapered_weight",
    "token_kl",
    "trusted_weight",
]

EPS = 1e-8
"""Added to a probability whose logarithm is taken."""


def clipped_weight(logp: TokenFloat, old_logp: TokenFloat, *, clip_low: float, clip_high: float) -> TokenFloat:
    """clip(r, 1 - clip_low, 1 + clip_high): no token is without a gradient. Source: CISPO (2506.13585).

    >>> clipped_weight(torch.tensor([[2.0, -9.0]]), torch.zeros(1, 2), clip_low=0.5, clip_high=4.0)
    tensor([[5.0000, 0.5000]])
    """
    return token_ratio(logp, old_logp).clamp(1 - clip_low, 1 + clip_high)


def flipped_weight(
    logp: TokenFloat,
    old_logp: TokenFloat,
    advantage: TokenFloat,
    *,
    clip_low: float,
    clip_high: float,
    weight_cap: float,
) -> TokenFloat:
    """min(1/r where A > 0, r where A < 0; weight_cap), and 0 where PPO clips.

    Among the tokens that are to become likelier, a ratio as a weight favors those that already have. Its inverse
    favors those that are left behind. Source: ASPO (2510.06062).

    >>> logp, clip = torch.tensor([[0.5, 2.0]]).log(), dict(clip_low=0.2, clip_high=0.2, weight_cap=3.0)
    >>> flipped_weight(logp, torch.zeros(1, 2), torch.ones(1, 2), **clip)
    tensor([[2., 0.]])
    """
    ratio = token_ratio(logp, old_logp)
    weight = torch.where(advantage > 0, 1 / ratio, ratio).clamp(max=weight_cap)
    return weight * (1 - clipped(ratio, advantage, clip_low=clip_low, clip_high=clip_high))


def trusted_weight(
    logp: TokenFloat,
    rollout_logp: TokenFloat,
    advantage: TokenFloat,
    *,
    divergence: Callable[[TokenFloat, TokenFloat], TokenFloat],
    divergence_low: float,
    divergence_high: float,
    ratio_cap: float,
) -> TokenFloat:
    """min(r, ratio_cap), r = exp(logp - rollout_logp), but 0 where the token has moved too far already.

        dropped where (A > 0, r > 1, D > divergence_high) or (A < 0, r < 1, D > divergence_low)

    D is `probability_gap` or `token_kl`: how far the distributions are apart, of which a ratio says little. A ratio of
    10 at a probability of 1e-4 is nothing. Source: DPPO (2602.04879).
    """
    distance = divergence(logp, rollout_logp)
    far = torch.where(advantage > 0, distance > divergence_high, distance > divergence_low)
    forth = advantage * (logp - rollout_logp) > 0
    return torch.where(far & forth, 0, token_ratio(logp, rollout_logp).clamp(max=ratio_cap))


def probability_gap(logp: TokenFloat, rollout_logp: TokenFloat) -> TokenFloat:
    """abs(p - q), p = exp(logp), q = exp(rollout_logp): the total variation of "this token, or another".

    >>> probability_gap(torch.tensor([[0.5]]).log(), torch.tensor([[0.75]]).log())
    tensor([[0.2500]])
    """
    return (_probability(logp) - _probability(rollout_logp)).abs()


def token_kl(logp: TokenFloat, rollout_logp: TokenFloat) -> TokenFloat:
    """KL(sampler || policy) of "this token, or another": q log(q / p) + (1 - q) log((1 - q) / (1 - p)).

    >>> token_kl(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.5, 0.25]]).log()).round(decimals=4)
    tensor([[0.0000, 0.1308]])
    """
    p, q = _probability(logp), _probability(rollout_logp)
    return q * (rollout_logp - logp) + (1 - q) * ((1 - q + EPS).log() - (1 - p + EPS).log())


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
    """W^k exp(decay (1 - W)), with W = exp(sum_t m_it (logp_it - rollout_logp_it)), the importance weight of the row.

    It is 1 at W = 1, largest at W = power / decay, and falls to 0 on both sides: what has become rare says little, and
    what has become frequent does not take over. Two kinds, where A >= 0 and where A < 0. Source: VESPO (2602.10693).
    """
    log_ratio = sequence_log_ratio(logp, rollout_logp, mask).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    positive = _gamma(log_ratio, power=power_positive, decay=decay_positive)
    negative = _gamma(log_ratio, power=power_negative, decay=decay_negative)
    return torch.where(advantage >= 0, positive.unsqueeze(-1), negative.unsqueeze(-1))


def _gamma(log_ratio: RowFloat, *, power: float, decay: float) -> RowFloat:
    return (power * log_ratio - decay * log_ratio.expm1()).exp()


def tapered_weight(logp: TokenFloat, rollout_logp: TokenFloat, advantage: TokenFloat, mask: TokenBool) -> TokenFloat:
    """1 where A >= 0, min(W, 1) elsewhere; W = exp(sum_t m_it (logp_it - rollout_logp_it)), that of the row.

    A good row is learned wherever it came from. A bad one stops to matter as it becomes unlikely: without the taper its
    log-probability would fall for ever. Source: TOPR (2503.14286).

    >>> logp, advantage, yes = torch.tensor([[-1.0, 0.0]]), torch.tensor([[1.0, -1.0]]), torch.tensor([[True, True]])
    >>> tapered_weight(logp, torch.zeros(1, 2), advantage, yes)
    tensor([[1.0000, 0.3679]])
    """
    weight = sequence_log_ratio(logp, rollout_logp, mask).clamp(max=0).exp()
    return torch.where(advantage >= 0, 1, weight.unsqueeze(-1))
