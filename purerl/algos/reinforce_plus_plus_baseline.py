"""REINFORCE++ with the group mean as a baseline: Hu 2025 (2501.03262).

REINFORCE++ for several completions per prompt. The mean of the group is subtracted from the score of a row, so that
easy and hard prompts have the same level. The result is whitened over the whole batch. It is not divided by the
standard deviation of the group, which is small and noisy if nearly all rows have the same score.

    A_it  = s_i - mean_g
    Aw_it = (A_it - mean(A)) / (std(A) + 1e-8)
    loss  = (1 / tokens) sum_it max(-Aw_it r_it, -Aw_it clip(r_it, 1 - clip_low, 1 + clip_high))

mean(A) and std(A) are over the tokens of the whole batch. `tokens` is the number of tokens of the optimizer step. The
rest is as in `grpo`.

Choices that differ between libraries:

- The standard deviation divides by the number of tokens minus 1.
- Long rows have more weight in the mean and the standard deviation, because every token is counted.
- In a group of one row, every advantage is 0 before whitening.

Differences from the paper:

1. The KL penalty of the paper is the modifier `kl_loss` with the estimator k2.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import grpo
from purerl.algos.algebra import Algorithm
from purerl.algos.modifiers import advantage_scale, advantage_whitening, reduction
from purerl.algos.parts.settings import base_settings
from purerl.composition import Composition, build_algorithm

__all__ = ["EXEMPTIONS", "Config", "algorithm", "composition"]

EXEMPTIONS = advantage_whitening.EXEMPTIONS


@frozen(kw_only=True)
class Config(grpo.Config):
    """Hyperparameters of REINFORCE++ with a baseline: the settings of GRPO."""


def composition(config: Config) -> Composition:
    """REINFORCE++ with a baseline as GRPO with modifiers."""
    advantage = advantage_scale.Config(by="none"), advantage_whitening.Config()
    return Composition(base_settings(config, grpo.Config), (*advantage, reduction.Config(by="token_mean")))


def algorithm(config: Config = Config()) -> Algorithm:
    """Build REINFORCE++ with a baseline from `config`."""
    return build_algorithm(composition(config))
