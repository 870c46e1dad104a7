"""GPG, group policy gradient: Chu et al. 2025 (2504.02546).

GPG is the policy gradient with the mean of the group as baseline. It has no ratio, no clipping, no critic and no
reference model. Groups whose scores are all equal have no gradient, but they enlarge the denominator of the loss. The
factor alpha corrects for this.

    alpha = rows / varied_rows
    A_i   = alpha * (s_i - mean_g)
    loss  = -(1 / tokens) sum_it A_i logp_it

rows is the number of rows of the whole batch, and varied_rows the number of those whose group has different scores.
`tokens` is the number of tokens of the optimizer step. The rest is as in `rloo`.

Choices that differ between libraries:

- The advantage is not divided by a standard deviation (F_norm of the paper is 1).
- Every token has the same weight.
- In a group of one row, every advantage is 0. alpha counts it as a group without variance.

Differences from the paper:

1. The paper resamples if too few groups have variance. There is no such bound here; a `select` function can implement
   it.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import rloo
from purerl.algos.algebra import Algorithm
from purerl.algos.estimators.group_relative import gpg_advantage
from purerl.algos.modifiers import reduction
from purerl.algos.parts.transforms import outcome_advantage
from purerl.composition import with_modifiers

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"group_independence": "advantages are scaled by the fraction of rows in groups with variance"}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of GPG."""


def algorithm(config: Config = Config()) -> Algorithm:
    """Build GPG from `config`."""
    base = with_modifiers(rloo.algorithm(), reduction.Config(by="token_mean"))
    return base._replace(advantage=outcome_advantage(gpg_advantage))
