"""IcePop, GRPO with a band of mismatch ratios: Ling Team 2025, report of Ring-1T (2510.18855).

IcePop is GRPO with a correction for the training-inference mismatch, which is large for mixture-of-experts models. Each
token is weighted by the ratio of the probabilities that the trainer and the generator compute for it. Tokens whose
ratio is outside a band have weight 0.

    k_it = exp(old_logp_it - rollout_logp_it)
    w_it = k_it    if min_ratio <= k_it <= max_ratio
           0       else
    l_it = sg(w_it) max(-A_i r_it, -A_i clip(r_it, 1 - clip_low, 1 + clip_high))

The rest is as in `grpo`. sg() stops the gradient. Tokens of weight 0 stay in the denominators. The metrics of the
weights are described in `parts.corrections`.

Differences from the paper:

1. Clipping, reduction and standard deviation are as in `grpo`. The report's own choices are unverified.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import grpo
from purerl.algos.algebra import Algorithm
from purerl.algos.modifiers import importance_weight
from purerl.algos.parts.settings import base_settings, number, require_below
from purerl.composition import Composition, build_algorithm

__all__ = ["Config", "algorithm", "composition"]


@frozen(kw_only=True)
class Config(grpo.Config):
    """Hyperparameters of IcePop: the settings of GRPO, and the band of ratios."""

    min_ratio: float = number("tokens with a smaller ratio of trainer and generator have weight 0", 0.5, above=0, max=1)
    max_ratio: float = number(
        "tokens with a larger ratio of trainer and generator have weight 0", 5.0, min=1, infinite="no upper bound"
    )

    def __attrs_post_init__(self) -> None:
        require_below(self, "min_ratio", "max_ratio")


def composition(config: Config) -> Composition:
    """IcePop as GRPO with modifiers."""
    band = importance_weight.Config(how="band", min_ratio=config.min_ratio, max_ratio=config.max_ratio)
    return Composition(base_settings(config, grpo.Config), (band,))


def algorithm(config: Config = Config()) -> Algorithm:
    """Build IcePop from `config`."""
    return build_algorithm(composition(config))
