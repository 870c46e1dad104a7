"""OPO, on-policy RL with optimal reward baseline: Hao et al. 2025 (2505.23585).

The baseline that leaves a policy gradient with the least variance weighs each reward with the squared gradient of the
row's log-probability. If that grows like the row's length, the baseline is a mean weighted by lengths. With it, and
strictly on-policy, no ratio, no clipping, no divergence and no bonus is needed.

    A_i  = s_i - sum_g(n_j s_j) / sum_g(n_j)                     n_j: counted tokens of row j
    loss = -(1 / rows) sum_i A_i sum_t logp_it

Choices, where libraries differ: log-probabilities are summed over tokens, which is what the baseline is optimal for
(the reduction of the authors' code: [unverified]); a group of one has advantage 0. One optimizer step for each batch is
the algorithm.

Differences from the paper:

1. An entropy bonus may be added; it is summed over tokens, as the log-probabilities are.
"""

from __future__ import annotations

from attrs import frozen
from tensordict import TensorDict

from purerl.algos.algebra import Algorithm, of_fields, stateless, writes
from purerl.algos.estimators.group_relative import length_weighted_advantage
from purerl.algos.parts.policy import policy_objective
from purerl.algos.parts.reductions import sequence_mean_of_token_sum
from purerl.algos.parts.rows import broadcast_to_tokens
from purerl.algos.parts.settings import number
from purerl.algos.parts.surrogates import policy_gradient
from purerl.kernels.masks import any_true, count_true
from purerl.types import TokenFloat

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """The hyper-parameter of OPO."""

    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """OPO as `config` sets it."""
    policy = policy_objective(
        of_fields(policy_gradient, "logp", "advantage"),
        sequence_mean_of_token_sum,
        reads=("advantage",),
        metrics={},
        kl_loss_coef=0.0,
        entropy_coef=config.entropy_coef,
    )
    return Algorithm(
        ("reward",), stateless(writes("advantage", _length_weighted_advantage)), (policy,), min_group_size=2
    )


def _length_weighted_advantage(batch: TensorDict) -> TokenFloat:
    score, mask = batch["reward"].sum(-1), batch["mask"]
    length = count_true(mask).to(score.dtype)
    return broadcast_to_tokens(length_weighted_advantage(score, length, batch["group"], any_true(mask)), mask)
