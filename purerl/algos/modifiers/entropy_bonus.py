"""An entropy bonus in the loss of the policy.

    loss = loss of the algorithm - coef * reduce(entropy)

The entropy is that of the distribution of the next token, nats. It is reduced like the policy loss, or by `reduction`,
which the modifier `reduction` does not change.

A constant coefficient that keeps the entropy of one model from collapsing can make the entropy of another model
explode. With `target`, the coefficient adapts. The coefficient of the first batch is `coef`. After each batch:

    coef <- clip(coef + step_size * sign(target - H), 0, max_coef)

H is the mean entropy of the counted tokens under the policy at the start of the update, nats. A batch with H > target
has no bonus. The metric `entropy_coef` is the coefficient of the batch.

Sources: Williams and Peng 1991; PPO (1707.06347); adaptive entropy control in Skywork-OR1 (2505.22312) for `target`.
`max_coef` is in the authors' code.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, Objective, Term, read_field
from purerl.algos.parts.adaptive import adaptive_entropy_coefficient
from purerl.algos.parts.editing import (
    LIKE_POLICY,
    TERM_REDUCTIONS,
    adapt_term,
    add_reads,
    change_policy,
    insert_term,
    reduction_of,
)
from purerl.algos.parts.settings import choice, number, require_target
from purerl.errors import ConfigError

__all__ = ["Config", "exemptions", "modify"]


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `entropy_bonus`."""

    coef: float = number("coefficient of the entropy; with a target, that of the first batch", 0.001, min=0)
    reduction: str = choice("reduction of the entropy; policy: that of the policy loss", TERM_REDUCTIONS, LIKE_POLICY)
    target: float = number("entropy that the coefficient adapts to; 0: it is constant", 0.0, min=0, unit="nats")
    step_size: float = number("change of the coefficient after a batch, with a target", 0.005, above=0)
    max_coef: float = number("largest coefficient, with a target", 1.0, above=0, infinite="no maximum")

    def __attrs_post_init__(self) -> None:
        require_target(self, "step_size", "max_coef")
        if self.target and self.coef > self.max_coef:
            raise ConfigError("max_coef", got=f"{self.max_coef:g}", need=f"at least coef, which is {self.coef:g}")


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with an entropy bonus.

    Raises: ConfigError for an algorithm that trains no policy, or that has an entropy bonus.
    """

    def rewarded(policy: Objective) -> Objective:
        reduction = reduction_of(policy, config.reduction)
        policy = insert_term(policy, Term("entropy", read_field("entropy"), weight=-config.coef, **reduction))
        return policy._replace(
            outputs=tuple(dict.fromkeys((*policy.outputs, "entropy"))),
            metric_outputs=tuple(name for name in policy.metric_outputs if name != "entropy"),
        )

    algorithm = change_policy(algorithm, rewarded)
    if not config.target:
        return algorithm
    names = ("coef", "target", "step_size", "max_coef")
    coefficient = adaptive_entropy_coefficient("entropy_coef", **{name: getattr(config, name) for name in names})
    return adapt_term(add_reads(algorithm, "old_entropy"), "entropy", "entropy_coef", coefficient)


def exemptions(config: Config) -> dict[str, str]:
    """The laws that need not hold for an algorithm with this modifier."""
    if config.target:
        return {"group_independence": "a batch with a high mean entropy has no bonus"}
    return {}
