"""RLOO, REINFORCE leave-one-out: Kool et al. 2019; for language models, Ahmadian et al. 2024 (2402.14740).

RLOO samples several completions per prompt. The baseline of a completion is the mean reward of the other completions.
It does not depend on the completion itself, so the gradient is unbiased. A completion is treated as one action, whose
log-probability is the sum over its tokens.

    A_i  = (s_i - mean_g) N_g / (N_g - 1)
    loss = -(1 / rows) sum_i A_i sum_t logp_it

s_i is the sum of all rewards of row i. A_i is s_i minus the mean of s over the other rows of the group g, the N_g rows
of one prompt. `rows` is the number of rows of the optimizer step. Losses, means and counts cover only tokens where
`mask` is 1.

Choices that differ between libraries:

- There is no ratio and no clipping, so the rows must come from the current policy. Further optimizer steps with the
  rows of a batch are biased: a run with several mini-batches or passes, or with stale rollouts, is refused. A ratio can
  be added with the modifier `clipped_surrogate`.
- In a group of one row, every advantage is 0.

Metrics, means over the tokens where `mask` is 1:

- `policy/entropy`: entropy of the next-token distribution, nats.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, chain, of_fields
from purerl.algos.estimators.group_relative import leave_one_out_advantage
from purerl.algos.parts.policy import policy_objective
from purerl.algos.parts.reductions import sequence_mean_of_token_sum
from purerl.algos.parts.surrogates import policy_gradient
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """Hyperparameters of RLOO."""


def algorithm(config: Config = Config()) -> Algorithm:
    """Build RLOO from `config`."""
    policy = policy_objective(
        of_fields(policy_gradient, "logp", "advantage"), sequence_mean_of_token_sum, reads=("advantage",), metrics={}
    )
    return Algorithm(
        reads=("reward",),
        advantage=chain(outcome_advantage(leave_one_out_advantage)),
        objectives=(policy,),
        min_group_size=2,
    )
