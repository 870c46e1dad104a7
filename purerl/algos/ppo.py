"""PPO, proximal policy optimization, with a critic: Schulman et al. 2017 (1707.06347).

A second model, the critic, estimates at each token the reward that is still to come. A token's advantage is how much
better things went from there than the critic had thought. The critic is updated first, then the policy.

    reward_t -= kl_reward_coef * (old_logp_t - ref_logp_t)
    delta_t = reward_t + discount * V_{t+1} - V_t               V: old_value; t + 1: the next action token
    A_t     = delta_t + discount * lambda_ * A_{t+1}
    R_t     = A_t + V_t
    critic:   token mean of 1/2 max((v - R)^2, (V + clip(v - V, -value_clip, value_clip) - R)^2)
    policy:   token mean of max(-Aw r, -Aw clip(r, 1 - clip_low, 1 + clip_high)) - entropy_coef * entropy

where Aw is A whitened over the counted tokens of the whole batch.

Choices, where libraries differ: advantages are whitened over the batch of rollouts, not over a minibatch; the returns
are not whitened. Nothing is bootstrapped at the end of a row, truncated or not.

Differences from the paper:

1. Policy and critic are two models with an objective each, not one with a sum of losses.
2. The value is clipped, as in the authors' code.
3. A divergence from a reference may be taken from the reward (1909.08593).
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, chain
from purerl.algos.parts.policy import clipped_policy, token_level_ratio
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.settings import number, optional
from purerl.algos.parts.transforms import gae_advantage, kl_in_reward, whiten_advantage
from purerl.algos.parts.values import critic_objective

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "group_independence": "advantages are whitened over the batch",
    "reward_shift_invariance": "the baseline is the critic's, and does not see the shift",
}


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of PPO."""

    clip_low: float = number("how far the ratio may fall below 1 before it is clipped", 0.2, min=0, max=1)
    clip_high: float = number("how far the ratio may rise above 1 before it is clipped", 0.2, min=0)
    discount: float = number("what a reward loses with each token that comes before it", 1.0, min=0, max=1)
    lambda_: float = number("0 trusts the critic's next estimate, 1 only what happened", 0.95, min=0, max=1)
    value_clip: float = number("how far the critic's estimate may move in one update", 0.5, above=0, unit="reward")
    kl_reward_coef: float = number("weight of the divergence from the reference in the reward", 0.0, min=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, min=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """PPO as `config` sets it."""
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
        reads=("reward", "old_value", *optional(kl, "old_logp", "ref_logp")),
        advantage=chain(
            *optional(kl, kl_in_reward(kl_reward_coef=kl)),
            gae_advantage(discount=config.discount, lambda_=config.lambda_),
            whiten_advantage,
        ),
        objectives=(critic_objective(value_clip=config.value_clip), policy),
    )
