"""A KL penalty against the reference model, in the reward of each token.

    u_it  = reward_it - coef * kl_it    if position = reward
    c_it  = kl_it + c_{i,t+1}
    A'_it = A_it - coef * c_it          if position = advantage

`kl_it` is an estimate of KL(policy || reference) at the token, under the policy at the start of the update. t + 1 is
the next action token of the row. With x = old_logp - ref_logp:

    k1     x; the policy gradient of its sum over a row is the gradient of the KL divergence of whole sequences
    k2     x^2 / 2
    k3     exp(-x) + x - 1
    abs    abs(x)

Only k1 has this property; the others are there because other libraries offer them. verl's `algorithm.kl_ctrl` is k1 by
default, NeMo-RL uses k3.

With ``position = "reward"``, the penalty is part of everything that the algorithm computes from rewards: the baseline
and the standard deviation of a group contain it too. With ``position = "advantage"``, the group is compared by scores
without the penalty, and each token has the penalties of the tokens from it on in its advantage, as in OpenRLHF. If the
algorithm whitens its advantage at the end, the penalty is subtracted before. This needs an advantage that is computed
from the scores of rows.

With `target`, the coefficient adapts. The coefficient of the first batch is `coef`. After each batch, with B rows:

    coef <- coef * max(1/2, 1 + clip(D / target - 1, -0.2, 0.2) * B / horizon)
    coef <- max(coef, 1e-6)    if D > target

D is the mean over rows of sum_t x_t, whatever the estimator, and `target` is a divergence of whole rows, in nats. The
metric `kl_reward_coef` is the coefficient of the batch.

In a list of modifiers, one of rewards that comes later is applied earlier: the penalty is subtracted from its result.

Source: Ziegler et al. 2019 (1909.08593).
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, Transform, chain, stages_of
from purerl.algos.parts.adaptive import adaptive_kl_coefficient
from purerl.algos.parts.divergences import absolute_log_ratio, k1, k2, k3
from purerl.algos.parts.editing import (
    add_reads,
    contains,
    is_whitened,
    prepend_transform,
    report_coefficient,
    require_field,
)
from purerl.algos.parts.settings import choice, number, require_target
from purerl.algos.parts.transforms import _outcome_advantage, kl_in_advantage, kl_in_reward
from purerl.errors import ConfigError

__all__ = ["Config", "exemptions", "modify"]

_FIELD = "kl_reward_coef"
_ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3, "abs": absolute_log_ratio}


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `kl_reward`."""

    coef: float = number("coefficient of the KL penalty; with a target, that of the first batch", 0.001, min=0)
    estimator: str = choice("estimate of the KL divergence at a token", _ESTIMATORS, "k1")
    position: str = choice("where the penalty is subtracted", ("reward", "advantage"), "reward")
    target: float = number("divergence that the coefficient adapts to; 0: it is constant", 0.0, min=0, unit="nats")
    horizon: float = number("the larger, the slower the coefficient adapts", 10_000.0, above=0, unit="rows")

    def __attrs_post_init__(self) -> None:
        require_target(self, "horizon")


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with a KL penalty in the reward, or in the advantage.

    Raises: ConfigError for an algorithm whose advantage does not depend on rewards, and with position = advantage for
        one whose advantage is not computed from the scores of rows.
    """
    require_field(algorithm, "reward", "an algorithm that computes advantages from rewards")
    algorithm = add_reads(algorithm, "old_logp", "ref_logp")
    settings = {"kl_reward_coef": _FIELD if config.target else config.coef, "estimate": _ESTIMATORS[config.estimator]}
    if config.position == "reward":
        algorithm = prepend_transform(algorithm, kl_in_reward(**settings))
    else:
        algorithm = _after_baseline(algorithm, kl_in_advantage(**settings))
    if not config.target:
        return algorithm
    coefficient = adaptive_kl_coefficient(_FIELD, coef=config.coef, target=config.target, horizon=config.horizon)
    return report_coefficient(prepend_transform(algorithm, coefficient), _FIELD)


def exemptions(config: Config) -> dict[str, str]:
    """The laws that need not hold for an algorithm with this modifier."""
    if config.position == "reward":
        return {}
    return {"small_groups_have_zero_advantage": "a row that is alone in its group has its penalty as the advantage"}


def _after_baseline(algorithm: Algorithm, penalty: Transform) -> Algorithm:
    """`algorithm` with `penalty` at the end of its advantage, but before a whitening."""
    if not contains(algorithm.advantage, lambda bound: bound.function is _outcome_advantage):
        got, need = "advantage, with an advantage of tokens", "an advantage of rows, as in GRPO and RLOO"
        raise ConfigError("position", got=got, need=need, do="set position to reward")
    stages = stages_of(algorithm.advantage)
    end = len(stages) - is_whitened(algorithm.advantage)
    return algorithm._replace(advantage=chain(*stages[:end], penalty, *stages[end:]))
