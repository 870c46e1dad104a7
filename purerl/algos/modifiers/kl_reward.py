"""A KL penalty against the reference model, in the reward of each token.

    u_it = reward_it - coef * kl_it

`kl_it` is an estimate of KL(policy || reference) at the token, under the policy at the start of the update. The penalty
is part of everything that the algorithm computes from rewards. With x = old_logp - ref_logp:

    k1     x; the policy gradient of its sum over a row is the gradient of the KL divergence of whole sequences
    k2     x^2 / 2
    k3     exp(-x) + x - 1
    abs    abs(x)

Only k1 has this property; the others are there because other libraries offer them. verl's `algorithm.kl_ctrl` is k1 by
default, NeMo-RL uses k3.

In a list of modifiers, one of rewards that comes later is applied earlier: the penalty is subtracted from its result.

Source: Ziegler et al. 2019 (1909.08593).
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, chain
from purerl.algos.parts.divergences import absolute_log_ratio, k1, k2, k3
from purerl.algos.parts.editing import add_reads, require_field
from purerl.algos.parts.settings import choice, number
from purerl.algos.parts.transforms import kl_in_reward

__all__ = ["Config", "modify"]

_ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3, "abs": absolute_log_ratio}


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `kl_reward`."""

    coef: float = number("coefficient of the KL penalty", 0.001, above=0)
    estimator: str = choice("estimate of the KL divergence at a token", _ESTIMATORS, "k1")


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with a KL penalty in the reward.

    Raises: ConfigError for an algorithm whose advantage does not depend on rewards.
    """
    require_field(algorithm, "reward", "an algorithm that computes advantages from rewards")
    penalty = kl_in_reward(kl_reward_coef=config.coef, estimate=_ESTIMATORS[config.estimator])
    return add_reads(algorithm._replace(advantage=chain(penalty, algorithm.advantage)), "old_logp", "ref_logp")
