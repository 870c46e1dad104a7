"""ReMax: Li et al. 2023 (2310.10505).

REINFORCE with a baseline that costs one more completion for each prompt: the score of the greedy one. It does not
depend on what was sampled, so the gradient stays unbiased; and prompts that are easy anyway no longer push everything
up.

    reward_t -= kl_reward_coef * (old_logp_t - ref_logp_t)
    A_t  = G_t - greedy_score_i,    G_t = reward_t + G_{t+1}       t + 1: the next action token
    loss = -(1 / rows) sum_it A_it logp_it

`greedy_score` is the score of the completion that the policy gives at temperature 0 to the row's prompt; it is a field,
which whoever generates has to supply.

Choices, where libraries differ: nothing is discounted; the greedy score carries no divergence; there is no ratio and
nothing is clipped, so one optimizer step for each batch is the algorithm.

Differences from the paper:

1. The divergence in the reward is off unless `kl_reward_coef` is set, and so is the reference model.
2. An entropy bonus may be added; it is summed over tokens, as the log-probabilities are.
"""

from __future__ import annotations

from attrs import frozen
from tensordict import TensorDict

from purerl.algos.algebra import Algorithm, chain, of_fields, stateless, write_field
from purerl.algos.parts.policy import policy_objective
from purerl.algos.parts.reductions import sequence_mean_of_token_sum
from purerl.algos.parts.rows import broadcast_to_tokens
from purerl.algos.parts.settings import number, optional
from purerl.algos.parts.surrogates import policy_gradient
from purerl.algos.parts.transforms import kl_in_reward, return_advantage
from purerl.types import TokenFloat

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of ReMax."""

    kl_reward_coef: float = number("weight of the divergence from the reference in the reward", 0.0, min=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, min=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """ReMax as `config` sets it."""
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
        reads=("reward", "greedy_score", *optional(kl, "old_logp", "ref_logp")),
        advantage=chain(
            *optional(kl, kl_in_reward(kl_reward_coef=kl)),
            return_advantage(discount=1.0),
            stateless(write_field("advantage", _above_greedy)),
        ),
        objectives=(policy,),
    )


def _above_greedy(batch: TensorDict) -> TokenFloat:
    return batch["advantage"] - broadcast_to_tokens(batch["greedy_score"], batch["mask"])
