"""RLOO, REINFORCE leave-one-out: Kool et al. 2019; for language models, Ahmadian et al. 2024 (2402.14740).

Several completions are sampled for each prompt. A completion's baseline is the mean reward of the *others*: it does not
depend on the completion itself, so the gradient is unbiased. A completion is one action, whose log-probability is the
sum of its tokens'.

    s_i  = sum_t reward_it - kl_reward_coef * sum_t (old_logp_it - ref_logp_it)
    A_i  = s_i - mean of s over the other rows of g = (s_i - mean_g) N_g / (N_g - 1)
    loss = -(1 / rows) sum_i A_i sum_t logp_it

Choices, where libraries differ: there is no ratio and nothing is clipped, so the rows must come from the policy as it
is: one optimizer step for each batch is the algorithm, further ones are biased. A group of one has advantage 0.

Differences from the paper:

1. The divergence in the reward is off unless `kl_reward_coef` is set, and so is the reference model.
2. An entropy bonus may be added; it is summed over tokens, as the log-probabilities are.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, chain, of_fields
from purerl.algos.estimators.group_relative import leave_one_out_advantage
from purerl.algos.parts.policy import policy_objective
from purerl.algos.parts.reductions import sequence_mean_of_token_sum
from purerl.algos.parts.settings import number, optional
from purerl.algos.parts.surrogates import policy_gradient
from purerl.algos.parts.transforms import kl_in_reward, outcome_advantage

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of RLOO."""

    kl_reward_coef: float = number("weight of the divergence from the reference in the reward", 0.0, least=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """RLOO as `config` sets it."""
    kl = config.kl_reward_coef
    policy = policy_objective(
        of_fields(policy_gradient, "logp", "advantage"),
        sequence_mean_of_token_sum,
        reads=("advantage",),
        metrics={},
        kl_loss_coef=0.0,
        entropy_coef=config.entropy_coef,
    )
    return Algorithm(
        reads=("reward", *optional(kl, "old_logp", "ref_logp")),
        advantage=chain(
            *optional(kl, kl_in_reward(kl_reward_coef=kl)),
            outcome_advantage(leave_one_out_advantage),
        ),
        objectives=(policy,),
        min_group_size=2,
    )
