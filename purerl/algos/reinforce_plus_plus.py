"""REINFORCE++: Hu 2025 (2501.03262).

PPO without a critic, and without groups: one completion for each prompt is enough. A token's advantage is the reward
that is still to come, less what every token pays for its distance from a reference, whitened over the whole batch.

    reward_t -= kl_reward_coef * (old_logp_t - ref_logp_t)
    G_t  = reward_t + discount * G_{t+1}                        t + 1: the next action token
    A    = (G - mean) / (std + 1e-8)                            over the counted tokens of the whole batch
    loss = token mean of max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))

Choices, where libraries differ: the standard deviation divides by the number of tokens less 1; long rows weigh more in
the mean and the standard deviation, since every token is counted.

Differences from the paper:

1. An entropy bonus may be added.
2. `kl_reward_coef` may be 0, and then there is no reference model.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, chain
from purerl.algos.parts.policy import clipped_policy, token_level_ratio
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.settings import number, optional
from purerl.algos.parts.transforms import kl_in_reward, return_advantage, whiten_advantage

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "group_independence": "advantages are whitened over the batch",
    "reward_shift_invariance": "returns have no baseline but the mean of the batch",
}


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of REINFORCE++."""

    clip_low: float = number("how far the ratio may fall below 1 before it is clipped", 0.2, min=0, max=1)
    clip_high: float = number("how far the ratio may rise above 1 before it is clipped", 0.2, min=0)
    discount: float = number("what a reward loses with each token that comes before it", 1.0, min=0, max=1)
    kl_reward_coef: float = number("weight of the divergence from the reference in the reward", 0.01, min=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, min=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """REINFORCE++ as `config` sets it."""
    kl = config.kl_reward_coef
    policy = clipped_policy(
        token_level_ratio,
        token_mean,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        kl_loss_coef=0.0,
        entropy_coef=config.entropy_coef,
    )
    return Algorithm(
        reads=("reward", *optional(kl, "old_logp", "ref_logp")),
        advantage=chain(
            *optional(kl, kl_in_reward(kl_reward_coef=kl)),
            return_advantage(discount=config.discount),
            whiten_advantage,
        ),
        objectives=(policy,),
    )
