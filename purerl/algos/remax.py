"""ReMax: Li et al. 2023 (2310.10505).

ReMax is REINFORCE with a baseline that costs one more completion per prompt: the score of the greedy completion. The
baseline does not depend on the sampled completion, so the gradient stays unbiased. For an easy prompt the baseline is
high, so a correct completion is not reinforced only because the prompt is easy.

    u_it = reward_it - kl_reward_coef * (old_logp_it - ref_logp_it)
    G_it = u_it + G_{i,t+1}
    A_it = G_it - greedy_score_i
    loss = -(1 / rows) sum_it A_it logp_it

t + 1 is the next action token of the row. The field `greedy_score` is the score of the greedy (temperature 0)
completion of the row's prompt. `rows` is the number of rows of the optimizer step. Losses, means and counts cover only
tokens where `mask` is 1.

Choices that differ between libraries:

- Rewards are not discounted.
- The greedy score contains no KL penalty.
- There is no ratio and no clipping, so the rows must come from the current policy. Use one optimizer step per batch;
  further steps are biased.

Metrics, means over the tokens where `mask` is 1:

- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. The KL penalty is off unless `kl_reward_coef` is set. There is no reference model then.
2. An entropy bonus (`entropy_coef`) can be added. It is summed over tokens, like the log-probabilities.
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
    """Hyperparameters of ReMax."""

    kl_reward_coef: float = number("coefficient of the KL penalty in the reward (0: no reference model)", 0.0, min=0)
    entropy_coef: float = number("coefficient of the entropy bonus", 0.0, min=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build ReMax from `config`."""
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
            stateless(write_field("advantage", _minus_greedy_score)),
        ),
        objectives=(policy,),
    )


def _minus_greedy_score(batch: TensorDict) -> TokenFloat:
    return batch["advantage"] - broadcast_to_tokens(batch["greedy_score"], batch["mask"])
