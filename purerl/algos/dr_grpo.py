"""Dr. GRPO, GRPO done right: Liu et al. 2025, Understanding R1-Zero-Like Training (2503.20783).

GRPO has two biases. Dividing by the standard deviation of a group gives more weight to very easy and very hard prompts.
Dividing the loss of a row by its length favors short correct completions and long incorrect ones. Dr. GRPO removes both
divisions. If all groups have the same size, its gradient is the gradient of the expected reward, times a constant.

    A_i  = s_i - mean_g
    loss = (1 / (rows * norm_length)) sum_it max(-A_i r_it, -A_i clip(r_it, 1 - clip_low, 1 + clip_high))

The rest is as in `grpo`.

Choices that differ between libraries:

- `norm_length` is the same for every batch. A batch of long completions therefore has a larger loss.
- mean_g includes row i, so a group of N_g rows has (N_g - 1) / N_g of the gradient. Groups of different sizes, for
  example after a rejection, have different factors. `rloo` has none.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import grpo
from purerl.algos.algebra import Algorithm
from purerl.algos.modifiers import advantage_scale, reduction
from purerl.algos.parts.settings import base_settings, number
from purerl.composition import Composition, build_algorithm

__all__ = ["Config", "algorithm", "composition"]


@frozen(kw_only=True)
class Config(grpo.Config):
    """Hyperparameters of Dr. GRPO: the settings of GRPO, and `norm_length`."""

    norm_length: float = number(
        "constant that divides the sum over tokens, for example the maximum length", 1024, above=0, unit="tokens"
    )


def composition(config: Config) -> Composition:
    """Dr. GRPO as GRPO with modifiers."""
    constant_norm = reduction.Config(by="constant_norm", length=config.norm_length)
    return Composition(base_settings(config, grpo.Config), (advantage_scale.Config(by="none"), constant_norm))


def algorithm(config: Config = Config()) -> Algorithm:
    """Build Dr. GRPO from `config`."""
    return build_algorithm(composition(config))
