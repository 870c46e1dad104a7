"""DAPO on forking tokens: Wang et al. 2025, Beyond the 80/20 Rule (2506.01939).

Most tokens of a chain of thought follow from those before them. A minority of high entropy decides where it goes, and
these alone carry what reinforcement learning teaches. So DAPO's policy loss is taken at them only.

    keep g where the scores of g differ
    A_i  = (s_i - mean_g) / (std_g + 1e-6)
    F    = the max(1, floor(top_fraction * tokens)) tokens of largest entropy
    l_it = max(-A_i r_it, -A_i clip(r_it, 1 - clip_low, 1 + clip_high)) where it in F, else 0
    loss = sum over rows and tokens of l_it / tokens

Choices, where libraries differ: "tokens" are all counted tokens of the optimizer step, not those of F alone, as in
TRL (the paper [unverified]); the rest is as in DAPO.

Differences from the paper:

1. Entropies are those of the policy when the update began (`old_entropy`), and F is chosen over the whole optimizer
   step (the paper: over a micro-batch [unverified]): the choice does not depend on how a step is cut.
2. With the last token of F those come that equal it.
3. Overlong reward shaping is left to the reward.
4. A divergence from the reference (`kl_loss_coef`) and an entropy bonus may be added; they cover every token.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, of_fields
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import clipped_policy, dropping, per_token
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.selection import groups_with_variance, least_uncertain
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "group_independence": "tokens are chosen over the whole step",
    "reinforce_gradient_on_policy": "most tokens have no policy loss, wherever the policy is",
}


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of DAPO on forking tokens."""

    top_fraction: float = number("share of the tokens that have a policy loss", 0.2, above=0, most=1)
    clip_low: float = number("how far the ratio may fall below 1 before it is clipped", 0.2, least=0, most=1)
    clip_high: float = number("how far the ratio may rise above 1 before it is clipped", 0.28, least=0)
    kl_loss_coef: float = number("weight of the divergence from the reference in the loss", 0.0, least=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """DAPO on forking tokens as `config` sets it."""
    policy = clipped_policy(
        per_token,
        token_mean,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        kl_loss_coef=config.kl_loss_coef,
        entropy_coef=config.entropy_coef,
    )
    choice = of_fields(least_uncertain, "old_entropy", "mask", top_fraction=config.top_fraction)
    return Algorithm(
        ("reward",),
        outcome_advantage(group_normalized_advantage),
        (dropping(policy, choice, "old_entropy"),),
        select=groups_with_variance,
        min_group_size=2,
    )
