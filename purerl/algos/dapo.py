"""DAPO, decoupled clip and dynamic sampling policy optimization: Yu et al. 2025 (2503.14476).

DAPO is GRPO with three changes:

- Clip-higher: the upper clip offset is larger than the lower one. Rare tokens can gain more probability, which keeps
  the entropy up.
- Dynamic sampling: groups whose scores are all equal have no gradient. They are dropped. If
  `rollout.max_resample_rounds` is above 0, other groups are sampled instead.
- Token mean: every token has the same weight in the loss.

The loss is

    loss = (1 / tokens) sum_it max(-A_i r_it, -A_i clip(r_it, 1 - clip_low, 1 + clip_high))

`tokens` is the number of tokens of the optimizer step. The rest is as in `grpo`.

Choices that differ between libraries:

- The loss is divided by the tokens of the whole optimizer step, as in the authors' code. The formula of the paper
  divides within each group.
- A group is dropped if all its scores are equal. The paper drops groups that are all correct or all incorrect.

Differences from the paper:

1. Overlong reward shaping is not part of the algorithm. It is the setting `rollout.overlong`, or the transform
   `parts.shaping.overlong_in_reward`.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import grpo
from purerl.algos.algebra import Algorithm
from purerl.algos.modifiers import group_filter, reduction
from purerl.algos.parts.settings import base_settings, number
from purerl.composition import Composition, build_algorithm

__all__ = ["Config", "algorithm", "composition"]


@frozen(kw_only=True)
class Config(grpo.Config):
    """Hyperparameters of DAPO: the settings of GRPO, with another default."""

    clip_high: float = number(
        "upper clip offset: the ratio is clipped above 1 + clip_high", 0.28, min=0, infinite="not clipped"
    )


def composition(config: Config) -> Composition:
    """DAPO as GRPO with modifiers."""
    modifiers = reduction.Config(by="token_mean"), group_filter.Config(by="variance")
    return Composition(base_settings(config, grpo.Config), modifiers)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build DAPO from `config`."""
    return build_algorithm(composition(config))
