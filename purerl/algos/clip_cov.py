"""Clip-Cov, no loss for tokens of high covariance: Cui et al. 2025 (2505.22617).

A few tokens cause most of the loss of entropy: those whose log-probability and advantage have a large covariance.
Clip-Cov removes the policy loss of some of these tokens, chosen at random. Use it if the entropy of the policy
collapses during training.

    cov_it = (old_logp_it - mean(old_logp)) (A_i - mean(A))
    l_it   = 0                                                               if token (i, t) is in P
             max(-A_i r_it, -A_i clip(r_it, 1 - clip_low, 1 + clip_high))    else
    loss   = (1 / tokens) sum_it l_it

P is a random set of max(1, floor(fraction * tokens)) tokens with cov_low < cov_it < cov_high. mean() is over all tokens
of the optimizer step. The field `noise` has a uniform random number for each token: P is the set of candidates with the
largest noise.

`tokens` is the number of tokens of the optimizer step. The rest is as in `grpo`. The metric `policy/dropped_fraction`
is the fraction of tokens in P.

Choices that differ between libraries:

- `clip_low` and `clip_high` are as in the authors' scripts. They are so wide that only ratios above 2 are clipped.
- Tokens of P stay in the denominator `tokens`.

Differences from the paper:

1. Covariances are computed over the whole optimizer step, from `old_logp`. The choice of tokens then does not depend on
   the micro-batches. The authors' code computes them per micro-batch, from the current log-probabilities.
2. For the same reason, P can contain tokens that are clipped and have no gradient anyway. The authors' code draws from
   the other tokens.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import grpo
from purerl.algos.algebra import Algorithm, of_fields
from purerl.algos.modifiers import reduction
from purerl.algos.parts.editing import change_policy
from purerl.algos.parts.policy import drop_tokens
from purerl.algos.parts.selection import sampled_covariance_tokens
from purerl.algos.parts.settings import number, require_below
from purerl.composition import with_modifiers

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "group_independence": "tokens are chosen over the whole optimizer step",
    "reinforce_gradient_on_policy": "dropped tokens have no policy loss, even on-policy",
}


@frozen(kw_only=True)
class Config(grpo.Config):
    """Hyperparameters of Clip-Cov: the settings of GRPO with other defaults, and those of P."""

    fraction: float = number("fraction of tokens whose policy loss is dropped", 2e-4, above=0, max=1)
    cov_low: float = number("only tokens with a covariance above this are dropped", 1.0)
    cov_high: float = number("only tokens with a covariance below this are dropped", 5.0, infinite="no upper bound")
    clip_low: float = number("lower clip offset: the ratio is clipped below 1 - clip_low", 1.0, min=0, max=1)
    clip_high: float = number(
        "upper clip offset: the ratio is clipped above 1 + clip_high", 1.0, min=0, infinite="not clipped"
    )

    def __attrs_post_init__(self) -> None:
        require_below(self, "cov_low", "cov_high")


def algorithm(config: Config = Config()) -> Algorithm:
    """Build Clip-Cov from `config`."""
    bounds = dict(fraction=config.fraction, cov_low=config.cov_low, cov_high=config.cov_high)
    choice = of_fields(sampled_covariance_tokens, "old_logp", "advantage", "noise", "mask", **bounds)
    base = with_modifiers(grpo.algorithm(config), reduction.Config(by="token_mean"))
    return change_policy(base, lambda policy: drop_tokens(policy, choice, "noise"))
