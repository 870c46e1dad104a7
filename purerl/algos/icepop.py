"""IcePop: Ling Team 2025, Every Step Evolves, the technical report of Ring-1T (2510.18855).

GRPO for rows that were sampled by an engine whose arithmetic differs from the trainer's, as it does much in mixtures of
experts. Where both give a token about the same probability, it is weighed by their ratio; where they do not, it is not
learned from.

    k_t  = exp(old_logp_t - rollout_logp_t)
    w_t  = k_t where min_ratio <= k_t <= max_ratio, else 0; without gradient
    loss = mean over rows of the mean over tokens of w_t max(-A_i r_it, -A_i clip(r_it, 1 - clip_low, 1 + clip_high))

Advantage and the rest are those of `grpo`.

Choices, where libraries differ: a token of weight 0 stays in the denominator.

Metrics: those of `parts.policy` and of `parts.corrections`.

Differences from the paper:

1. Clipping, reduction and standard deviation are those of `grpo`; the report's own settings of them are [unverified].
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import grpo
from purerl.algos.algebra import Algorithm, bind
from purerl.algos.parts.corrections import banded_ratio, token_weight, with_corrections
from purerl.algos.parts.settings import number, require_below

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config(grpo.Config):
    """The hyper-parameters of GRPO, and the band of weights."""

    min_ratio: float = number("the smallest ratio of trainer and sampler that is learned from", 0.5, above=0)
    max_ratio: float = number("the largest", 5.0, above=0)

    def __attrs_post_init__(self) -> None:
        require_below(self, "min_ratio", "max_ratio")


def algorithm(config: Config = Config()) -> Algorithm:
    """IcePop as `config` sets it."""
    return with_corrections(
        grpo.algorithm(config), token_weight(bind(banded_ratio, min_ratio=config.min_ratio, max_ratio=config.max_ratio))
    )
