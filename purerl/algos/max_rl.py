"""MaxRL, maximum likelihood reinforcement learning: Tajwar et al. 2026 (2602.02710).

With rewards of 0 and 1, the mean reward p of a prompt is the likelihood of a correct completion. MaxRL maximizes log p
instead of p. The gradient of log p is the gradient of p divided by p, so hard prompts have more weight. With N samples,
the mean gradient of the correct rows estimates this gradient up to order N of an expansion in pass@k. With the mean
over all rows as baseline, the advantage is

    A_i  = (s_i - mean_g) / mean_g
    loss = -(1 / rows) sum_i A_i sum_t logp_it

A_i is 0 if mean_g is 0 or negative.

s_i is the sum of all rewards of row i. g is its group: the N_g rows of one prompt. `rows` is the number of rows of the
optimizer step. Losses, means and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- Log-probabilities are summed over tokens, as in the derivation. The reduction of the authors' code is unverified.
- In a group of one row, every advantage is 0.
- There is no ratio and no clipping, so the rows must come from the current policy. Use one optimizer step per batch;
  further steps are biased.

Metrics, means over the tokens where `mask` is 1:

- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. Scores can be any numbers. The paper uses 0 and 1.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, of_fields
from purerl.algos.estimators.group_relative import mean_normalized_advantage
from purerl.algos.parts.policy import policy_objective
from purerl.algos.parts.reductions import sequence_mean_of_token_sum
from purerl.algos.parts.surrogates import policy_gradient
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"reward_shift_invariance": "the advantage is divided by the mean of the group"}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of MaxRL."""


def algorithm(config: Config = Config()) -> Algorithm:
    """Build MaxRL from `config`."""
    policy = policy_objective(
        of_fields(policy_gradient, "logp", "advantage"),
        sequence_mean_of_token_sum,
        reads=("advantage",),
        metrics={},
    )
    return Algorithm(("reward",), outcome_advantage(mean_normalized_advantage), (policy,), min_group_size=2)
