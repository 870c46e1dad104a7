"""An entropy bonus in the loss of the policy.

    loss = loss of the algorithm - coef * reduce(entropy)

The entropy is that of the distribution of the next token, nats. It is reduced like the policy loss, or by `reduction`.

Source: Williams and Peng 1991; PPO (1707.06347).
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, Objective, Term, read_field
from purerl.algos.parts import reductions
from purerl.algos.parts.editing import change_policy, insert_term, policy_of
from purerl.algos.parts.settings import choice, number

__all__ = ["Config", "modify"]

_SAME = "policy"


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `entropy_bonus`."""

    coef: float = number("coefficient of the entropy", 0.001, above=0)
    reduction: str = choice(
        "reduction of the entropy; policy: that of the policy loss", (_SAME, "token_mean", "token_sum"), _SAME
    )


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with an entropy bonus.

    Raises: ConfigError for an algorithm that trains no policy, or that has an entropy bonus.
    """
    same = policy_of(algorithm).terms[0].reduce
    reduce = same if config.reduction == _SAME else getattr(reductions, config.reduction)

    def rewarded(policy: Objective) -> Objective:
        policy = insert_term(policy, Term("entropy", read_field("entropy"), reduce, weight=-config.coef))
        return policy._replace(
            outputs=tuple(dict.fromkeys((*policy.outputs, "entropy"))),
            metric_outputs=tuple(name for name in policy.metric_outputs if name != "entropy"),
        )

    return change_policy(algorithm, rewarded)
