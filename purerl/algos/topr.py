"""TOPR, tapered off-policy REINFORCE: Le Roux et al. 2025 (2503.14286).

Rows may come from an older policy, or from another. Good ones are learned as they are, without an importance weight.
Bad ones are weighted by how likely they still are, but never by more than 1: pushing down what the policy does not do
any more would push for ever.

    A_i  = s_i - mean_g
    W_i  = exp(sum_t (logp_it - rollout_logp_it))
    w_i  = 1 where A_i >= 0, else min(W_i, 1)
    loss = -(1 / rows) sum_i sg(w_i) A_i sum_t logp_it

Choices, where libraries differ: the weight is the row's, as in the paper (ROLL: each token's). A group of one has
advantage 0.

Differences from the paper:

1. The baseline is the mean of the group, so that rewards may be of any scale (the paper: a constant, with rewards of 1
   and -1). So a group without variance has no gradient here.
2. An entropy bonus may be added; it is summed over tokens, as the log-probabilities are.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, of_fields
from purerl.algos.estimators.group_relative import group_centered_advantage
from purerl.algos.parts.policy import weighted_policy
from purerl.algos.parts.reductions import sequence_mean_of_token_sum
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage
from purerl.algos.parts.weights import tapered_weight

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"gradient_matches_finite_differences": "the gradient of the weight is stopped on purpose"}


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of TOPR."""

    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """TOPR as `config` sets it."""
    policy = weighted_policy(
        of_fields(tapered_weight, "logp", "rollout_logp", "advantage", "mask"),
        sequence_mean_of_token_sum,
        behavior="rollout_logp",
        kl_loss_coef=0.0,
        entropy_coef=config.entropy_coef,
    )
    return Algorithm(("reward",), outcome_advantage(group_centered_advantage), (policy,), min_group_size=2)
