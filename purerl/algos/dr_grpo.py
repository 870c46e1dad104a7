"""Dr. GRPO, GRPO done right: Liu et al. 2025, Understanding R1-Zero-Like Training (2503.20783).

GRPO has two biases: dividing by a group's standard deviation weighs easy and hard prompts more than those between, and
dividing each row's loss by its length prefers short right answers and long wrong ones. Without the two divisions the
gradient is that of the expected reward, times a constant.

    A_i  = s_i - mean_g
    loss = sum over rows and tokens of l_it / (rows * norm_length)          l_it as in GRPO

Choices, where libraries differ: the constant is the same for every batch, so that a long batch has a larger loss; a
group of one has advantage 0.

Differences from the paper:

1. A divergence from the reference (`kl_loss_coef`) and an entropy bonus may be added.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, bind
from purerl.algos.estimators.group_relative import group_centered_advantage
from purerl.algos.parts.policy import clipped_policy, per_token
from purerl.algos.parts.reductions import constant_norm
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of Dr. GRPO."""

    clip_low: float = number("how far the ratio may fall below 1 before it is clipped", 0.2, least=0, most=1)
    clip_high: float = number("how far the ratio may rise above 1 before it is clipped", 0.2, least=0)
    norm_length: float = number("divides sums over tokens; the longest completion, say", 1024, above=0, unit="tokens")
    kl_loss_coef: float = number("weight of the divergence from the reference in the loss", 0.0, least=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Dr. GRPO as `config` sets it."""
    policy = clipped_policy(
        per_token,
        bind(constant_norm, length=config.norm_length),
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        kl_loss_coef=config.kl_loss_coef,
        entropy_coef=config.entropy_coef,
    )
    return Algorithm(("reward",), outcome_advantage(group_centered_advantage), (policy,), min_group_size=2)
