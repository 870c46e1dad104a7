"""LUSPO, length-unbiased sequence policy optimization: Liu et al. 2026 (2602.05261).

GSPO gives every row the same weight, so a token of a long row has less weight than a token of a short one, and the
policy learns to answer briefly. LUSPO multiplies the loss of a row by its length. Every token then has the same weight.

    loss = (1 / rows) sum_i sum_t max(-A_i r_it, -A_i clip(r_it, 1 - clip_low, 1 + clip_high))

The rest is as in `gspo`. The clip offsets are larger.

Choices that differ between libraries:

- The loss grows with the length of the rows. The optional KL penalty and entropy bonus are summed in the same way.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import gspo
from purerl.algos.algebra import Algorithm
from purerl.algos.modifiers import reduction
from purerl.algos.parts.settings import base_settings, number
from purerl.composition import Composition, build_algorithm

__all__ = ["EXEMPTIONS", "Config", "algorithm", "composition"]

EXEMPTIONS = gspo.EXEMPTIONS


@frozen(kw_only=True)
class Config(gspo.Config):
    """Hyperparameters of LUSPO: the settings of GSPO, with other defaults."""

    clip_low: float = number("lower clip offset: the ratio is clipped below 1 - clip_low", 2e-3, min=0, max=1)
    clip_high: float = number(
        "upper clip offset: the ratio is clipped above 1 + clip_high", 2.5e-3, min=0, infinite="not clipped"
    )


def composition(config: Config) -> Composition:
    """LUSPO as GSPO with modifiers."""
    return Composition(base_settings(config, gspo.Config), (reduction.Config(by="sequence_mean_of_token_sum"),))


def algorithm(config: Config = Config()) -> Algorithm:
    """Build LUSPO from `config`."""
    return build_algorithm(composition(config))
