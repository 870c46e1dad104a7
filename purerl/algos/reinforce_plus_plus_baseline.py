"""REINFORCE++ with a baseline: Hu 2025 (2501.03262).

REINFORCE++ for several completions of each prompt: the mean of the group is taken from a row's score, so that easy and
hard prompts have the same level, and what is left is whitened over the *whole batch*, not by the group's own standard
deviation, which is small and noisy where nearly all rows agree.

    A_it = s_i - mean_g                                          at each counted token
    Aw   = (A - mean) / (std + 1e-8)                             over the counted tokens of the whole batch
    loss = token mean of max(-Aw r, -Aw clip(r, 1 - clip_low, 1 + clip_high))

Choices, where libraries differ: the standard deviation divides by the number of tokens less 1; long rows weigh more in
the mean and the standard deviation, since every token is counted; a group of one has advantage 0 before whitening.

Differences from the paper:

1. The divergence from the reference is off unless `kl_loss_coef` is set, and it is k3 (the paper: k2 in the loss).
2. An entropy bonus may be added.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, chain
from purerl.algos.estimators.group_relative import group_centered_advantage
from purerl.algos.parts.policy import clipped_policy, per_token
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage, whitened

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"group_independence": "advantages are whitened over the batch"}


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of REINFORCE++ with a baseline."""

    clip_low: float = number("how far the ratio may fall below 1 before it is clipped", 0.2, least=0, most=1)
    clip_high: float = number("how far the ratio may rise above 1 before it is clipped", 0.2, least=0)
    kl_loss_coef: float = number("weight of the divergence from the reference in the loss", 0.0, least=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """REINFORCE++ with a baseline as `config` sets it."""
    policy = clipped_policy(
        per_token,
        token_mean,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        kl_loss_coef=config.kl_loss_coef,
        entropy_coef=config.entropy_coef,
    )
    return Algorithm(
        ("reward",), chain(outcome_advantage(group_centered_advantage), whitened), (policy,), min_group_size=2
    )
