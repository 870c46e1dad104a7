"""REINFORCE++, PPO without critic and groups: Hu 2025 (2501.03262).

REINFORCE++ is PPO without a critic and without groups. One completion per prompt is enough. The advantage of a token is
the return that follows it, whitened over the whole batch. Every token has a KL penalty against a reference model in its
reward.

    u_it  = reward_it - kl_reward * (old_logp_it - ref_logp_it)
    G_it  = u_it + discount * G_{i,t+1}
    Aw_it = (G_it - mean(G)) / (std(G) + 1e-8)
    r_it  = exp(logp_it - old_logp_it)
    l_it  = max(-Aw_it r_it, -Aw_it clip(r_it, 1 - clip_low, 1 + clip_high))
    loss  = (1 / tokens) sum_it l_it

t + 1 is the next action token of the row. mean(G) and std(G) are over the tokens of the whole batch, and `tokens` is
the number of tokens of the optimizer step. Losses, means and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- The standard deviation divides by the number of tokens minus 1.
- Long rows have more weight in the mean and the standard deviation, because every token is counted.

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/ratio`: importance ratio r_it.
- `policy/clip_fraction`: fraction of tokens whose loss is clipped.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. `kl_reward` can be 0. There is no reference model then.
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
    "group_independence": "advantages are whitened over the whole batch",
    "reward_shift_invariance": "the only baseline of the returns is the mean of the batch",
}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of REINFORCE++."""

    clip_low: float = number("lower clip offset: the ratio is clipped below 1 - clip_low", 0.2, min=0, max=1)
    clip_high: float = number("upper clip offset: the ratio is clipped above 1 + clip_high", 0.2, min=0)
    discount: float = number("discount factor of rewards, per token", 1.0, min=0, max=1)
    kl_reward: float = number("coefficient of the KL penalty in the reward (0: no reference model)", 0.01, min=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build REINFORCE++ from `config`."""
    kl = config.kl_reward
    policy = clipped_policy(
        token_level_ratio,
        token_mean,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
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
