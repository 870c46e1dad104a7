"""REINFORCE: Williams 1992, Simple Statistical Gradient-Following Algorithms.

The policy gradient, and nothing else: each token is made likelier by as much as the reward that followed it. No
baseline, no group, no critic; unbiased, and of the highest variance. The others are what was added to it.

    G_t  = reward_t + discount * G_{t+1}                        t + 1: the next action token
    loss = -(1 / rows) sum_it G_it logp_it

Choices, where libraries differ: there is no ratio and nothing is clipped, so the rows must come from the policy as it
is: one optimizer step for each batch is the algorithm, further ones are biased.

Differences from the paper:

1. A divergence from a reference may be taken from the reward (1909.08593), and an entropy bonus may be added; it is
   summed over tokens, as the log-probabilities are.
2. There is no baseline; the paper allows any.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, chain, of_fields
from purerl.algos.parts.policy import policy_objective
from purerl.algos.parts.reductions import sequence_mean_of_token_sum
from purerl.algos.parts.settings import number, optional
from purerl.algos.parts.surrogates import policy_gradient
from purerl.algos.parts.transforms import kl_in_reward, return_advantage

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"reward_shift_invariance": "there is no baseline"}


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of REINFORCE."""

    discount: float = number("what a reward loses with each token that comes before it", 1.0, min=0, max=1)
    kl_reward_coef: float = number("weight of the divergence from the reference in the reward", 0.0, min=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, min=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """REINFORCE as `config` sets it."""
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
            return_advantage(discount=config.discount),
        ),
        objectives=(policy,),
    )
