"""LUSPO, length-unbiased sequence policy optimization: Liu et al. 2026 (2602.05261).

GSPO gives every row the same weight, whatever its length, so that a token of a long row counts for less: policies learn
to answer briefly. LUSPO multiplies a row's loss by its length, and every token counts the same.

    A_i    = (s_i - mean_g) / (std_g + 1e-6)
    dbar_i = (1 / n_i) sum_t (logp_it - old_logp_it)                      n_i: counted tokens
    r_it   = exp(sg(dbar_i) + logp_it - sg(logp_it))
    l_it   = max(-A_i r_it, -A_i clip(r_it, 1 - clip_low, 1 + clip_high))
    loss   = mean over rows of the sum over tokens of l_it

Choices, where libraries differ: the standard deviation divides by N_g - 1; a group of one has advantage 0. The loss
grows with length, and so does a divergence or a bonus, which are summed in the same way.

Differences from the paper:

1. A divergence from the reference (`kl_loss_coef`) and an entropy bonus may be added.
2. The mean is over all rows of an optimizer step, not first over the rows of each group: the same where groups are of
   one size.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import clipped_policy, per_sequence
from purerl.algos.parts.reductions import sequence_mean_of_token_sum
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of LUSPO."""

    clip_low: float = number("how far the ratio may fall below 1 before it is clipped", 2e-3, least=0, most=1)
    clip_high: float = number("how far the ratio may rise above 1 before it is clipped", 2.5e-3, least=0)
    kl_loss_coef: float = number("weight of the divergence from the reference in the loss", 0.0, least=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """LUSPO as `config` sets it."""
    policy = clipped_policy(
        per_sequence,
        sequence_mean_of_token_sum,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        kl_loss_coef=config.kl_loss_coef,
        entropy_coef=config.entropy_coef,
    )
    return Algorithm(("reward",), outcome_advantage(group_normalized_advantage), (policy,), min_group_size=2)
