"""REINFORCE++ with the group mean as a baseline: Hu 2025 (2501.03262).

REINFORCE++ for several completions per prompt. The mean of the group is subtracted from the score of a row, so that
easy and hard prompts have the same level. The result is whitened over the whole batch. It is not divided by the
standard deviation of the group, which is small and noisy if nearly all rows have the same score.

    A_it  = s_i - mean_g
    Aw_it = (A_it - mean(A)) / (std(A) + 1e-8)
    r_it  = exp(logp_it - old_logp_it)
    l_it  = max(-Aw_it r_it, -Aw_it clip(r_it, 1 - clip_low, 1 + clip_high))
    loss  = (1 / tokens) sum_it l_it

mean(A) and std(A) are over the tokens of the whole batch.

s_i is the sum of all rewards of row i. g is its group: the rows of one prompt. `tokens` is the number of tokens of the
optimizer step. Losses, means and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- The standard deviation divides by the number of tokens minus 1.
- Long rows have more weight in the mean and the standard deviation, because every token is counted.
- In a group of one row, every advantage is 0 before whitening.

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/ratio`: importance ratio r_it.
- `policy/clip_fraction`: fraction of tokens whose loss is clipped.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. The KL penalty of the paper is the modifier `kl_loss` with the estimator k2.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, chain
from purerl.algos.estimators.group_relative import group_centered_advantage
from purerl.algos.parts.policy import clipped_policy, token_level_ratio
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage, whiten_advantage

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"group_independence": "advantages are whitened over the whole batch"}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of REINFORCE++ with a baseline."""

    clip_low: float = number("lower clip offset: the ratio is clipped below 1 - clip_low", 0.2, min=0, max=1)
    clip_high: float = number("upper clip offset: the ratio is clipped above 1 + clip_high", 0.2, min=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build REINFORCE++ with a baseline from `config`."""
    policy = clipped_policy(
        token_level_ratio,
        token_mean,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
    )
    return Algorithm(
        ("reward",), chain(outcome_advantage(group_centered_advantage), whiten_advantage), (policy,), min_group_size=2
    )
