"""Smoothed labels in the loss of DPO, for pairs of which some are labeled wrongly.

    l(D) = -log sigmoid(beta * D)
    l_g  = (1 - smoothing) l(D_g) + smoothing l(-D_g)                            cDPO
    l_g  = ((1 - smoothing) l(D_g) - smoothing l(-D_g)) / (1 - 2 smoothing)      robust DPO, with robust = true

l(D) is the loss of DPO, D_g the margin of pair g, and `smoothing` the probability that a label is wrong. cDPO is the
expected loss under wrong labels. It has its minimum at a finite margin, with sigmoid(beta * D_g) = 1 - smoothing. The
loss of robust DPO is unbiased: its expected value under wrong labels is the loss of DPO under correct ones. It has no
lower bound.

TRL: `label_smoothing`, with the loss type robust. TRL 1.16 has no cDPO. SPIN has the loss of DPO too.

Sources: cDPO, Mitchell 2023, A note on DPO with noisy preferences; robust DPO (2403.00409).
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, Bound, Objective, bind
from purerl.algos.parts.editing import change_policy, map_bound
from purerl.algos.parts.preferences import dpo_loss, robust_dpo_loss, smoothed_dpo_loss
from purerl.algos.parts.settings import flag, number
from purerl.errors import ConfigError

__all__ = ["Config", "modify"]


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `label_smoothing`."""

    smoothing: float = number("probability that the label of a pair is wrong, below 0.5", 0.1, above=0, max=0.5)
    robust: bool = flag("the unbiased loss of robust DPO")

    def __attrs_post_init__(self) -> None:
        if self.smoothing == 0.5:
            raise ConfigError("smoothing", got="0.5: labels without information", need="a number below 0.5")


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with smoothed labels.

    Raises: ConfigError for an algorithm without the loss of DPO.
    """
    function = robust_dpo_loss if config.robust else smoothed_dpo_loss

    def smoothed(bound: Bound) -> Bound:
        if bound.function is not dpo_loss:
            return bound
        return bind(function, **dict(bound.keywords), smoothing=config.smoothing)

    def changed(policy: Objective) -> Objective:
        terms = map_bound(policy.terms, smoothed)
        if terms == policy.terms:
            raise ConfigError("has no effect", got="a loss other than DPO's", need="the loss of DPO")
        return policy._replace(terms=terms)

    return change_policy(algorithm, changed)
