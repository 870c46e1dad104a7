"""MaxRL, maximum likelihood reinforcement learning: Tajwar et al. 2026 (2602.02710).

The mean reward p of a prompt is the likelihood of being right. Its gradient is that of expected reward; the gradient of
its *logarithm* is the same, divided by p: hard prompts weigh more. With N samples the mean of the successes' gradients
alone estimates it, to the order N of an expansion in pass@k; less the mean over all rows, that is

    A_i  = (s_i - mean_g) / mean_g                               0 where mean_g is 0, or below
    loss = -(1 / rows) sum_i A_i sum_t logp_it

Choices, where libraries differ: log-probabilities are summed over tokens, as the derivation has it (the reduction of
the authors' code: [unverified]); a group of one has advantage 0. One optimizer step for each batch is the algorithm.

Differences from the paper:

1. An entropy bonus may be added; it is summed over tokens, as the log-probabilities are.
2. Scores may be any numbers; the paper's are 0 or 1.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, of_fields
from purerl.algos.estimators.group_relative import mean_normalized_advantage
from purerl.algos.parts.policy import policy_objective
from purerl.algos.parts.reductions import sequence_mean_of_token_sum
from purerl.algos.parts.settings import number
from purerl.algos.parts.surrogates import policy_gradient
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"reward_shift_invariance": "the mean of the group is divided by"}


@frozen(kw_only=True)
class Config:
    """The hyper-parameter of MaxRL."""

    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """MaxRL as `config` sets it."""
    policy = policy_objective(
        of_fields(policy_gradient, "logp", "advantage"),
        sequence_mean_of_token_sum,
        reads=("advantage",),
        metrics={},
        kl_loss_coef=0.0,
        entropy_coef=config.entropy_coef,
    )
    return Algorithm(("reward",), outcome_advantage(mean_normalized_advantage), (policy,), min_group_size=2)
