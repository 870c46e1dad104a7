"""GSPO, group sequence policy optimization: Zheng et al. 2025 (2507.18071).

GRPO with one ratio for each row. A row is rewarded as a whole, so it is weighed, and clipped, as a whole: by the
geometric mean of its tokens' ratios. That keeps the noise of single tokens out, which long rows and mixtures of experts
have much of.

    A_i    = (s_i - mean_g) / (std_g + 1e-6)
    dbar_i = (1 / n_i) sum_t (logp_it - old_logp_it)                      n_i: counted tokens
    r_it   = exp(sg(dbar_i) + logp_it - sg(logp_it))
    l_it   = max(-A_i r_it, -A_i clip(r_it, 1 - clip_low, 1 + clip_high))
    loss   = mean over rows of the mean over tokens of l_it

The ratio lies much closer to 1 than a token's, and so do its bounds.

Choices, where libraries differ: the standard deviation divides by N_g - 1; a group of one has advantage 0.

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
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of GSPO."""

    clip_low: float = number("how far the ratio may fall below 1 before it is clipped", 3e-4, least=0, most=1)
    clip_high: float = number("how far the ratio may rise above 1 before it is clipped", 4e-4, least=0)
    kl_loss_coef: float = number("weight of the divergence from the reference in the loss", 0.0, least=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """GSPO as `config` sets it."""
    policy = clipped_policy(
        per_sequence,
        sequence_mean_of_token_mean,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        kl_loss_coef=config.kl_loss_coef,
        entropy_coef=config.entropy_coef,
    )
    return Algorithm(("reward",), outcome_advantage(group_normalized_advantage), (policy,), min_group_size=2)
