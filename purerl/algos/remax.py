"""ReMax, REINFORCE minus the greedy reward: Li et al. 2023 (2310.10505).

ReMax is REINFORCE with a baseline that costs one more completion per prompt: the score of the greedy completion. The
baseline does not depend on the sampled completion, so the gradient stays unbiased. For an easy prompt the baseline is
high, so a correct completion is not reinforced only because the prompt is easy.

    G_it = reward_it + G_{i,t+1}
    A_it = G_it - greedy_score_i
    loss = -(1 / rows) sum_it A_it logp_it

t + 1 is the next action token of the row. The field `greedy_score` is the score of the greedy (temperature 0)
completion of the row's prompt. `rows` is the number of rows of the optimizer step. Losses, means and counts cover only
tokens where `mask` is 1.

Choices that differ between libraries:

- Rewards are not discounted.
- With the modifier `kl_reward`, the greedy score contains no KL penalty.
- There is no ratio and no clipping, so the rows must come from the current policy. Use one optimizer step per batch;
  further steps are biased.

Metrics, means over the tokens where `mask` is 1:

- `policy/entropy`: entropy of the next-token distribution, nats.
"""

from __future__ import annotations

from attrs import frozen
from tensordict import TensorDict

from purerl.algos.algebra import Algorithm, chain, of_fields, stateless, write_field
from purerl.algos.parts.policy import policy_objective
from purerl.algos.parts.reductions import sequence_mean_of_token_sum
from purerl.algos.parts.rows import broadcast_to_tokens
from purerl.algos.parts.surrogates import policy_gradient
from purerl.algos.parts.transforms import return_advantage
from purerl.types import TokenFloat

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """Hyperparameters of ReMax."""


def algorithm(config: Config = Config()) -> Algorithm:
    """Build ReMax from `config`."""
    policy = policy_objective(
        of_fields(policy_gradient, "logp", "advantage"),
        sequence_mean_of_token_sum,
        reads=("advantage",),
        metrics={},
    )
    return Algorithm(
        reads=("reward", "greedy_score"),
        advantage=chain(
            return_advantage(discount=1.0),
            stateless(write_field("advantage", _minus_greedy_score)),
        ),
        objectives=(policy,),
    )


def _minus_greedy_score(batch: TensorDict) -> TokenFloat:
    return batch["advantage"] - broadcast_to_tokens(batch["greedy_score"], batch["mask"])
