"""PPO, proximal policy optimization, with a critic: Schulman et al. 2017 (1707.06347).

A second model, the critic, estimates at each token the return that follows. The advantage of a token compares the
observed rewards with the critic's estimates (generalized advantage estimation). In each step, the critic is updated
first, then the policy. One completion per prompt is enough.

    delta_it = reward_it + discount * V_{i,t+1} - V_it
    A_it     = delta_it + discount * lambda_ * A_{i,t+1}
    R_it     = A_it + V_it
    Aw_it    = (A_it - mean(A)) / (std(A) + 1e-8)
    r_it     = exp(logp_it - old_logp_it)
    vc_it    = V_it + clip(v_it - V_it, -value_clip, value_clip)
    critic_loss = (1 / tokens) sum_it 1/2 max((v_it - R_it)^2, (vc_it - R_it)^2)
    policy_loss = (1 / tokens) sum_it max(-Aw_it r_it, -Aw_it clip(r_it, 1 - clip_low, 1 + clip_high))

V_it is the critic's estimate before the update (`old_value`), and v_it its current estimate. t + 1 is the next action
token of the row. mean(A) and std(A) are over the tokens of the whole batch, and `tokens` is the number of tokens of the
optimizer step. Losses, means and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- Advantages are whitened over the whole batch of rollouts, not per mini-batch. Returns are not whitened.
- There is no bootstrapping at the end of a row, even if the row is truncated.

Metrics, means over the tokens where `mask` is 1:

- `critic/value_error`: squared error of the critic's estimate, reward^2.
- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/ratio`: importance ratio r_it.
- `policy/clip_fraction`: fraction of tokens whose loss is clipped. `policy/clip_fraction_low` and
  `policy/clip_fraction_high` are its parts, below and above the clip range.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. Policy and critic are two models with one loss each. The paper has one model with the sum of the losses.
2. The value is clipped, as in the authors' code.
3. The entropy bonus of the paper is the modifier `entropy_bonus`.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, chain
from purerl.algos.parts.policy import clipped_policy, token_level_ratio
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import gae_advantage, whiten_advantage
from purerl.algos.parts.values import critic_objective

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "group_independence": "advantages are whitened over the whole batch",
    "reward_shift_invariance": "the critic's estimate does not depend on the shift",
}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of PPO."""

    clip_low: float = number("lower clip offset: the ratio is clipped below 1 - clip_low", 0.2, min=0, max=1)
    clip_high: float = number(
        "upper clip offset: the ratio is clipped above 1 + clip_high", 0.2, min=0, infinite="not clipped"
    )
    discount: float = number("discount factor of rewards, per token", 1.0, min=0, max=1)
    lambda_: float = number("GAE lambda: 0 is the one-step error, 1 the return minus the value", 0.95, min=0, max=1)
    value_clip: float = number(
        "clip range of the critic's estimate around its old value", 0.5, above=0, unit="reward", infinite="not clipped"
    )


def algorithm(config: Config = Config()) -> Algorithm:
    """Build PPO from `config`."""
    policy = clipped_policy(token_level_ratio, token_mean, clip_low=config.clip_low, clip_high=config.clip_high)
    return Algorithm(
        reads=("reward", "old_value"),
        advantage=chain(gae_advantage(discount=config.discount, lambda_=config.lambda_), whiten_advantage),
        objectives=(critic_objective(value_clip=config.value_clip), policy),
    )
