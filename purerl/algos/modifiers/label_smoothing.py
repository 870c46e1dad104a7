"""Smoothed labels in the losses of pairs of which some are labeled wrongly.

    l_g  = (1 - smoothing) l(c, r) + smoothing l(r, c)
    l_g  = ((1 - smoothing) l(c, r) - smoothing l(r, c)) / (1 - 2 smoothing)     with robust = true

l(c, r) is the loss of the algorithm for pair g, of which c and r are the log-ratios of the chosen and the rejected row.
`smoothing` is the probability that a label is wrong. The first loss is the expected one under wrong labels. With the
loss of DPO it is cDPO, which has its minimum at a finite margin, with sigmoid(beta * margin) = 1 - smoothing. The loss
of robust DPO is unbiased: its expected value under wrong labels is the loss under correct ones. That of DPO has then no
lower bound.

TRL: `label_smoothing`, with the loss types robust and aot, and in its CPO trainer. TRL 1.16 has no cDPO. The setting
`exo_smoothing` of `dpo` is another one, as is TRL's `label_smoothing` with the loss type exo_pair.

Sources: cDPO, Mitchell 2023, A note on DPO with noisy preferences; robust DPO (2403.00409).
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from purerl.algos.algebra import Algorithm, Bound, bind
from purerl.algos.parts.editing import change_policy, contains, policy_of
from purerl.algos.parts.preferences import change_pair_losses, robust_loss, smoothed_loss
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

    Raises: ConfigError for an algorithm without a loss of pairs, and for one whose labels are smoothed.
    """
    if contains(policy_of(algorithm).terms, lambda bound: bound.function in (smoothed_loss, robust_loss)):
        raise ConfigError("has no effect", got="an algorithm with smoothed labels", need="one without")
    function = robust_loss if config.robust else smoothed_loss

    def smoothed(loss: Callable) -> Bound:
        return bind(function, loss=loss, smoothing=config.smoothing)

    return change_policy(algorithm, lambda policy: change_pair_losses(policy, smoothed))
