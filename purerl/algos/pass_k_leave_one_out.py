"""Leave-one-out pass@k: Tang et al. 2025, Optimizing Language Models for Inference Time Objectives (2503.19595).

A group is rewarded for its best row. A row's share in that is what the group would lose without it: nothing, unless it
is the best; so only the best row learns, and by as much as it leads. The mean of the others' best does not depend on
the row, so the gradient is that of the expected maximum over the group.

    A_i  = max_g s - max of s over the other rows of g
    loss = -(1 / rows) sum_i A_i sum_t logp_it

Choices, where libraries differ: k is the size of the group; the advantage is not divided by the group's standard
deviation, which verl has as an option; where two are best all get 0; a group of one has advantage 0. One optimizer step
for each batch is the algorithm.

Differences from the paper:

1. An entropy bonus may be added; it is summed over tokens, as the log-probabilities are.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, of_fields
from purerl.algos.estimators.pass_k import leave_one_out_max_advantage
from purerl.algos.parts.policy import policy_objective
from purerl.algos.parts.reductions import sequence_mean_of_token_sum
from purerl.algos.parts.settings import number
from purerl.algos.parts.surrogates import policy_gradient
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """The hyper-parameter of leave-one-out pass@k."""

    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """leave-one-out pass@k as `config` sets it."""
    policy = policy_objective(
        of_fields(policy_gradient, "logp", "advantage"),
        sequence_mean_of_token_sum,
        reads=("advantage",),
        metrics={},
        kl_loss_coef=0.0,
        entropy_coef=config.entropy_coef,
    )
    return Algorithm(("reward",), outcome_advantage(leave_one_out_max_advantage), (policy,), min_group_size=2)
