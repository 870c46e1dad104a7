"""ASPO, asymmetric importance-sampling policy optimization: Wang et al. 2025 (2510.06062).

In GRPO a token's gradient is multiplied by its ratio. Among the tokens that are to become likelier, that is more for
those that already have, and less for those that are left behind: the wrong way round. ASPO inverts the ratio where the
advantage is positive.

    A_i  = (s_i - mean_g) / (std_g + 1e-6)
    w_it = 0 where (A_i > 0, r_it > 1 + clip_high) or (A_i < 0, r_it < 1 - clip_low)
           min(1 / r_it, weight_cap) where A_i > 0, min(r_it, weight_cap) where A_i < 0
    loss = sum over rows and tokens of -sg(w_it) A_i logp_it / tokens

Choices, where libraries differ: the standard deviation divides by N_g - 1; a group of one has advantage 0. The clip
offsets are DAPO's [unverified].

Differences from the paper:

1. The gradient is the paper's; the value is not. The paper writes surrogates with a ratio whose gradient is stopped in
   part, of which the above is the linear form: one form for clipped, inverted and capped tokens.
2. A divergence from the reference (`kl_loss_coef`) and an entropy bonus may be added.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, of_fields
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import weighted_policy
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage
from purerl.algos.parts.weights import flipped_weight

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"gradient_matches_finite_differences": "the gradient of the weight is stopped on purpose"}


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of ASPO."""

    clip_low: float = number("how far the ratio may fall below 1 before it is clipped", 0.2, least=0, most=1)
    clip_high: float = number("how far the ratio may rise above 1 before it is clipped", 0.28, least=0)
    weight_cap: float = number("a token weighs no more than this", 3.0, above=0)
    kl_loss_coef: float = number("weight of the divergence from the reference in the loss", 0.0, least=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """ASPO as `config` sets it."""
    weight = of_fields(
        flipped_weight,
        "logp",
        "old_logp",
        "advantage",
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        weight_cap=config.weight_cap,
    )
    policy = weighted_policy(
        weight,
        token_mean,
        behavior="old_logp",
        kl_loss_coef=config.kl_loss_coef,
        entropy_coef=config.entropy_coef,
    )
    return Algorithm(("reward",), outcome_advantage(group_normalized_advantage), (policy,), min_group_size=2)
