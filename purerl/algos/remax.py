"""ReMax, REINFORCE minus the greedy reward: Li et al. 2023 (2310.10505).

ReMax is REINFORCE with a baseline that costs one more completion per prompt: the score of the greedy completion. The
baseline does not depend on the sampled completion, so the gradient stays unbiased. For an easy prompt the baseline is
high, so a correct completion is not reinforced only because the prompt is easy.

    G_it = reward_it + G_{i,t+1}
    A_it = G_it - greedy_score_i

t + 1 is the next action token of the row. The field `greedy_score` is the score of the greedy (temperature 0)
completion of the row's prompt. The loss is as in `reinforce`, with A_it in place of G_it.

Choices that differ between libraries:

- Rewards are not discounted.
- With the modifier `kl_reward`, the greedy score contains no KL penalty.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import reinforce
from purerl.algos.algebra import Algorithm, chain, stages_of, stateless, write_field
from purerl.algos.parts.rows import broadcast_to_tokens
from purerl.types import TensorDict, TokenFloat

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """Hyperparameters of ReMax."""


def algorithm(config: Config = Config()) -> Algorithm:
    """Build ReMax from `config`."""
    base = reinforce.algorithm()
    advantage = chain(*stages_of(base.advantage), stateless(write_field("advantage", _minus_greedy_score)))
    return base._replace(reads=("reward", "greedy_score"), advantage=advantage)


def _minus_greedy_score(batch: TensorDict) -> TokenFloat:
    return batch["advantage"] - broadcast_to_tokens(batch["greedy_score"], batch["mask"])
