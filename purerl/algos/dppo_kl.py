"""DPPO, divergence PPO, with KL divergence: Qi et al. 2026 (2602.04879).

The divergence whose bounds decide whether a token is dropped is the KL divergence of two distributions with two
outcomes, the sampled token and any other token. In `dppo` it is the total variation. Its bounds are in other units.

    D_it = q_it log(q_it / p_it) + (1 - q_it) log((1 - q_it) / (1 - p_it))

The rest is as in `dppo`.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import dppo
from purerl.algos.algebra import Algorithm
from purerl.algos.parts.settings import number
from purerl.algos.parts.weights import binary_kl

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = dppo.EXEMPTIONS


@frozen(kw_only=True)
class Config(dppo.Config):
    """Hyperparameters of DPPO with KL divergence: the settings of `dppo`, with other defaults."""

    divergence_low: float = number(
        "a token with A < 0 is dropped if its divergence exceeds this", 0.05, min=0, infinite="none is dropped"
    )
    divergence_high: float = number(
        "a token with A > 0 is dropped if its divergence exceeds this", 0.05, min=0, infinite="none is dropped"
    )


def algorithm(config: Config = Config()) -> Algorithm:
    """Build DPPO with KL divergence from `config`."""
    return dppo.with_divergence(binary_kl, config)
