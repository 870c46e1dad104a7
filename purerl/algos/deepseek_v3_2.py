"""GRPO as in DeepSeek-V3.2: DeepSeek-AI 2025 (2512.02556).

A variant of GRPO for rows that were sampled by a policy other than the current one. Rows with negative advantage are
ignored if they have become unlikely. The estimate of the KL divergence from the reference model is unbiased, although
the policy has changed since the rows were sampled.

    A_i  = s_i - mean_g
    r_it = exp(logp_it - rollout_logp_it)
    M_i  = 0    if A_i < 0 and (1 / n_i) sum_t (rollout_logp_it - logp_it) > delta
           1    else
    c_it = max(-A_i r_it, -A_i clip(r_it, 1 - clip_low, 1 + clip_high))
    l_it = M_i c_it + kl_loss * r_it k3(logp_it, ref_logp_it)

The rest is as in `grpo`. The gradient of the KL term goes through both factors, r_it and k3. A row with M_i = 0 stays
in the denominators and in the mean of its group.

Choices that differ between libraries:

- The ratio is relative to the rollout policy (see `parts.bypass`), and so are the metrics `policy/ratio` and
  `policy/approx_kl`. Before an update, log-probabilities are computed by the reference model only, if `kl_loss` is
  above 0.

Differences from the paper:

1. The paper does not publish `delta`, `kl_loss` or the clip offsets. The defaults are ours (unverified).
2. The paper reuses the routing and the sampling masks of the generator in the trainer. Here this is left to the
   engines.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import grpo
from purerl.algos.algebra import Algorithm
from purerl.algos.modifiers import advantage_scale, bypass, off_policy_mask
from purerl.algos.modifiers import kl_loss as kl_penalty
from purerl.algos.parts.settings import base_settings, number
from purerl.composition import Composition, build_algorithm

__all__ = ["EXEMPTIONS", "Config", "algorithm", "composition"]

EXEMPTIONS = off_policy_mask.EXEMPTIONS


@frozen(kw_only=True)
class Config(grpo.Config):
    """Hyperparameters of GRPO as in DeepSeek-V3.2: the settings of GRPO, a bound, and a coefficient."""

    delta: float = number(
        "rows with A < 0 are ignored if their mean of rollout_logp - logp exceeds this", 0.1, min=0, unit="nats"
    )
    kl_loss: float = number("coefficient of the KL penalty in the loss (0: no reference model)", 0.0, min=0)


def composition(config: Config) -> Composition:
    """GRPO as in DeepSeek-V3.2 as GRPO with modifiers."""
    penalty = (kl_penalty.Config(coef=config.kl_loss, estimator="importance_k3"),) if config.kl_loss else ()
    mask = off_policy_mask.Config(delta=config.delta)
    modifiers = (advantage_scale.Config(by="none"), mask, *penalty, bypass.Config())
    return Composition(base_settings(config, grpo.Config), modifiers)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build GRPO as in DeepSeek-V3.2 from `config`."""
    return build_algorithm(composition(config))
