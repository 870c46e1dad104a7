"""Leave-one-out pass@k: Tang et al. 2025, Optimizing Language Models for Inference Time Objectives (2503.19595).

The objective is the maximum reward of a group. The advantage of a row is the amount by which the maximum would fall
without this row. It is 0 for all rows except the best one, whose advantage is its lead over the second best. The
maximum of the other rows is a baseline that does not depend on the row. The expected gradient is therefore the gradient
of the expected maximum over the group.

    A_i  = max_g(s) - M_i
    loss = -(1 / rows) sum_i A_i sum_t logp_it

M_i is the maximum of s over the other rows of the group.

s_i is the sum of all rewards of row i. g is its group: the N_g rows of one prompt. `rows` is the number of rows of the
optimizer step. Losses, means and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- k is the size of the group.
- The advantage is not divided by the standard deviation of the group. verl has an option for this.
- If two rows share the maximum, every advantage of the group is 0.
- In a group of one row, every advantage is 0.
- There is no ratio and no clipping, so the rows must come from the current policy. Use one optimizer step per batch;
  further steps are biased.

Metrics, means over the tokens where `mask` is 1:

- `policy/entropy`: entropy of the next-token distribution, nats.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, of_fields
from purerl.algos.estimators.pass_k import leave_one_out_max_advantage
from purerl.algos.parts.policy import policy_objective
from purerl.algos.parts.reductions import sequence_mean_of_token_sum
from purerl.algos.parts.surrogates import policy_gradient
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """Hyperparameters of leave-one-out pass@k."""


def algorithm(config: Config = Config()) -> Algorithm:
    """Build leave-one-out pass@k from `config`."""
    policy = policy_objective(
        of_fields(policy_gradient, "logp", "advantage"),
        sequence_mean_of_token_sum,
        reads=("advantage",),
        metrics={},
    )
    return Algorithm(("reward",), outcome_advantage(leave_one_out_max_advantage), (policy,), min_group_size=2)
