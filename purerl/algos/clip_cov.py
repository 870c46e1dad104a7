"""Clip-Cov: Cui et al. 2025, The Entropy Mechanism of RL for Reasoning Language Models (2505.22617).

A policy loses its entropy through few tokens: those whose likelihood and advantage are both high (or both low), for
their covariance is what entropy falls by. So the gradient is taken from a few of these, drawn at random.

    A_i    = (s_i - mean_g) / (std_g + 1e-6)
    cov_it = (old_logp_it - mean old_logp) (A_it - mean A)
    P      = max(1, floor(fraction * tokens)) random tokens of those with cov_low < cov < cov_high
    l_it   = 0 where it in P, else max(-A_i r_it, -A_i clip(r_it, 1 - clip_low, 1 + clip_high))
    loss   = sum over rows and tokens of l_it / tokens

Chance is data: the field `noise` holds a uniform number for each token, and the candidates of largest noise are drawn.

Choices, where libraries differ: the clip offsets are those of the authors' scripts, so wide that only a ratio above 2
is clipped; a token in P stays in the denominator. The standard deviation divides by N_g - 1; a group of one has
advantage 0.

Differences from the paper:

1. Covariances are taken over the whole optimizer step, from `old_logp` (the authors' code: over a micro-batch, from the
   log-probabilities now): so the choice does not depend on how a step is cut.
2. For the same reason a token may be drawn that is clipped anyway, and has no gradient to lose (the authors' code draws
   from the others).
3. A divergence from the reference (`kl_loss_coef`) and an entropy bonus may be added.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, of_fields
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import clipped_policy, dropping, per_token
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.selection import sampled_covariance
from purerl.algos.parts.settings import in_order, number
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "group_independence": "tokens are chosen over the whole step",
    "reinforce_gradient_on_policy": "the tokens that it chooses have no policy loss, wherever the policy is",
}


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of Clip-Cov."""

    fraction: float = number("share of the tokens that is left out", 2e-4, above=0, most=1)
    cov_low: float = number("covariance above which a token may be left out", 1.0)
    cov_high: float = number("covariance below which a token may be left out", 5.0)
    clip_low: float = number("how far the ratio may fall below 1 before it is clipped", 1.0, least=0, most=1)
    clip_high: float = number("how far the ratio may rise above 1 before it is clipped", 1.0, least=0)
    kl_loss_coef: float = number("weight of the divergence from the reference in the loss", 0.0, least=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)

    def __attrs_post_init__(self) -> None:
        in_order(self, "cov_low", "cov_high")


def algorithm(config: Config = Config()) -> Algorithm:
    """Clip-Cov as `config` sets it."""
    policy = clipped_policy(
        per_token,
        token_mean,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        kl_loss_coef=config.kl_loss_coef,
        entropy_coef=config.entropy_coef,
    )
    bounds = dict(fraction=config.fraction, cov_low=config.cov_low, cov_high=config.cov_high)
    choice = of_fields(sampled_covariance, "old_logp", "advantage", "noise", "mask", **bounds)
    return Algorithm(
        ("reward",),
        outcome_advantage(group_normalized_advantage),
        (dropping(policy, choice, "noise"),),
        min_group_size=2,
    )
