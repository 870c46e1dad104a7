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

With `target`, the coefficient adapts. The coefficient of the first batch is `coef`. After each batch, with B rows:

    coef <- coef * (1 + clip(D / target - 1, -0.2, 0.2) * B / horizon)

D is the mean over rows of sum_t x_t, whatever the estimator, and `target` is a divergence of whole rows, in nats. The
metric `kl_reward_coef` is the coefficient of the batch.

In a list of modifiers, one of rewards that comes later is applied earlier: the penalty is subtracted from its result.

Source: Ziegler et al. 2019 (1909.08593).
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, chain
from purerl.algos.parts.adaptive import adaptive_kl_coefficient
from purerl.algos.parts.divergences import absolute_log_ratio, k1, k2, k3
from purerl.algos.parts.editing import add_reads, prepend_transform, report_coefficient, require_field
from purerl.algos.parts.settings import choice, number, require_target
from purerl.algos.parts.transforms import adaptive_kl_in_reward, kl_in_reward

__all__ = ["Config", "modify"]

_ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3, "abs": absolute_log_ratio}


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `kl_reward`."""

    coef: float = number("coefficient of the KL penalty", 0.001, above=0)
    estimator: str = choice("estimate of the KL divergence at a token", _ESTIMATORS, "k1")
    target: float = number("divergence that the coefficient adapts to; 0: it is constant", 0.0, min=0, unit="nats")
    horizon: float = number("the larger, the slower the coefficient adapts", 10_000.0, above=0, unit="rows")

    def __attrs_post_init__(self) -> None:
        require_target(self, "horizon")


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with a KL penalty in the reward.

    Raises: ConfigError for an algorithm whose advantage does not depend on rewards.
    """
    require_field(algorithm, "reward", "an algorithm that computes advantages from rewards")
    estimate, algorithm = _ESTIMATORS[config.estimator], add_reads(algorithm, "old_logp", "ref_logp")
    if not config.target:
        return prepend_transform(algorithm, kl_in_reward(kl_reward_coef=config.coef, estimate=estimate))
    settings = {"coef": config.coef, "target": config.target, "horizon": config.horizon}
    coefficient = adaptive_kl_coefficient("kl_reward_coef", **settings)
    algorithm = prepend_transform(algorithm, chain(coefficient, adaptive_kl_in_reward(estimate=estimate)))
    return report_coefficient(algorithm, "kl_reward_coef")
