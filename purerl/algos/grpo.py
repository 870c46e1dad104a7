"""GRPO, group relative policy optimization: Shao et al. 2024, DeepSeekMath (2402.03300).

Several completions are sampled for each prompt. A completion's advantage is its reward relative to the others', in
standard deviations; no critic is needed. Each token of it gets that advantage, in PPO's clipped surrogate.

    A_i  = (s_i - mean_g) / (std_g + 1e-6)                              g: the rows of one prompt
    r_it = exp(logp_it - old_logp_it)
    l_it = max(-A_i r_it, -A_i clip(r_it, 1 - clip_low, 1 + clip_high)) + kl_loss_coef * k3(logp_it, ref_logp_it)
    loss = mean over rows of the mean over tokens of l_it

Choices, where libraries that say GRPO differ: the standard deviation divides by N_g - 1; a group of one and a group
without variance have advantage 0; the loss is averaged within each row first.

Differences from the paper:

1. There is no divergence term unless `kl_loss_coef` is set (the paper: 0.04), and so no reference model.
2. An entropy bonus may be added.
3. The mean is over all rows of an optimizer step, not first over the rows of each group: the same where groups are of
   one size.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import clipped_policy, per_token
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of GRPO."""

    clip_low: float = number("how far the ratio may fall below 1 before it is clipped", 0.2, least=0, most=1)
    clip_high: float = number("how far the ratio may rise above 1 before it is clipped", 0.2, least=0)
    kl_loss_coef: float = number("weight of the divergence from the reference in the loss", 0.0, least=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """GRPO as `config` sets it."""
    policy = clipped_policy(
        per_token,
        sequence_mean_of_token_mean,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        kl_loss_coef=config.kl_loss_coef,
        entropy_coef=config.entropy_coef,
    )
    return Algorithm(("reward",), outcome_advantage(group_normalized_advantage), (policy,), min_group_size=2)
