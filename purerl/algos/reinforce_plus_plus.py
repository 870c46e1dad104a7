"""REINFORCE++, PPO without critic and groups: Hu 2025 (2501.03262).

REINFORCE++ is PPO without a critic and without groups. One completion per prompt is enough. The advantage of a token is
the return that follows it, whitened over the whole batch. Every token has a KL penalty against a reference model in its
reward.

    u_it  = reward_it - kl_reward * (old_logp_it - ref_logp_it)
    G_it  = u_it + discount * G_{i,t+1}
    Aw_it = (G_it - mean(G)) / (std(G) + 1e-8)
    loss  = (1 / tokens) sum_it max(-Aw_it r_it, -Aw_it clip(r_it, 1 - clip_low, 1 + clip_high))

t + 1 is the next action token of the row. mean(G) and std(G) are over the tokens of the whole batch, and `tokens` is
the number of tokens of the optimizer step. The ratio and the metrics are as in `grpo`.

Choices that differ between libraries:

- The standard deviation divides by the number of tokens minus 1.
- Long rows have more weight in the mean and the standard deviation, because every token is counted.

Differences from the paper:

1. `kl_reward` can be 0. There is no reference model then.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import grpo
from purerl.algos.algebra import Algorithm, chain
from purerl.algos.modifiers import reduction
from purerl.algos.parts.settings import number, optional
from purerl.algos.parts.transforms import kl_in_reward, return_advantage, whiten_advantage
from purerl.composition import with_modifiers

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "group_independence": "advantages are whitened over the whole batch",
    "reward_shift_invariance": "the only baseline of the returns is the mean of the batch",
}


@frozen(kw_only=True)
class Config(grpo.Config):
    """Hyperparameters of REINFORCE++: the settings of GRPO, and those of the return."""

    discount: float = number("discount factor of rewards, per token", 1.0, min=0, max=1)
    kl_reward: float = number("coefficient of the KL penalty in the reward (0: no reference model)", 0.01, min=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build REINFORCE++ from `config`."""
    kl = config.kl_reward
    base = with_modifiers(grpo.algorithm(config), reduction.Config(by="token_mean"))
    return base._replace(
        reads=("reward", *optional(kl, "old_logp", "ref_logp")),
        advantage=chain(
            *optional(kl, kl_in_reward(kl_reward_coef=kl)), return_advantage(discount=config.discount), whiten_advantage
        ),
        min_group_size=1,
    )
