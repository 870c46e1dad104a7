"""MaxRL, maximum likelihood reinforcement learning: Tajwar et al. 2026 (2602.02710).

With rewards of 0 and 1, the mean reward p of a prompt is the likelihood of a correct completion. MaxRL maximizes log p
instead of p. The gradient of log p is the gradient of p divided by p, so hard prompts have more weight. It is a series:
the sum over k = 1, 2, ... of the gradient of pass@k divided by k. With N samples, the expected mean gradient of the
correct rows is the sum up to k = N. With the mean over all rows as baseline, the advantage is

    A_i  = (s_i - mean_g) / mean_g

A_i is 0 if mean_g is 0 or negative. With this baseline the sum ends at k = N - 1, because a group without a correct row
has no baseline. The rest is as in `rloo`.

Choices that differ between libraries:

- Log-probabilities are summed over tokens, as in the derivation. The reduction of the authors' code is unverified.

Differences from the paper:

1. Scores can be any numbers. The paper uses 0 and 1.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import rloo
from purerl.algos.algebra import Algorithm
from purerl.algos.estimators.group_relative import mean_normalized_advantage
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"reward_shift_invariance": "the advantage is divided by the mean of the group"}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of MaxRL."""


def algorithm(config: Config = Config()) -> Algorithm:
    """Build MaxRL from `config`."""
    return rloo.algorithm()._replace(advantage=outcome_advantage(mean_normalized_advantage))
