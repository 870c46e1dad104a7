"""GPG, group policy gradient: Chu et al. 2025 (2504.02546).

GPG is the policy gradient with the mean of the group as baseline. It has no ratio, no clipping, no critic and no
reference model. Groups whose scores are all equal have no gradient, but they enlarge the denominator of the loss. The
factor alpha corrects for this.

    alpha = rows / varied_rows
    A_i   = alpha * (s_i - mean_g)
    loss  = -(1 / tokens) sum_it A_i logp_it

rows is the number of rows of the whole batch, and varied_rows the number of those whose group has different scores.

s_i is the sum of all rewards of row i. g is its group: the N_g rows of one prompt. `tokens` is the number of tokens of
the optimizer step. Losses, means and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- The advantage is not divided by a standard deviation (F_norm of the paper is 1).
- Every token has the same weight.
- In a group of one row, every advantage is 0. alpha counts it as a group without variance.
- There is no ratio and no clipping, so the rows must come from the current policy. Use one optimizer step per batch;
  further steps are biased.

Metrics, means over the tokens where `mask` is 1:

- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. The paper resamples if too few groups have variance. There is no such bound here; a `select` function can implement
   it.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, of_fields
from purerl.algos.estimators.group_relative import gpg_advantage
from purerl.algos.parts.policy import policy_objective
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.surrogates import policy_gradient
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"group_independence": "advantages are scaled by the fraction of rows in groups with variance"}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of GPG."""


def algorithm(config: Config = Config()) -> Algorithm:
    """Build GPG from `config`."""
    policy = policy_objective(
        of_fields(policy_gradient, "logp", "advantage"),
        token_mean,
        reads=("advantage",),
        metrics={},
    )
    return Algorithm(("reward",), outcome_advantage(gpg_advantage), (policy,), min_group_size=2)
