"""VESPO, variational sequence-level soft policy optimization: Shen et al. 2026 (2602.10693).

The importance weight of a whole row is right in the mean, and of a variance that nobody can use. VESPO reshapes it: the
weight that is both near to the right one and of bounded second moment is a gamma-shaped function of it. Rows that have
become rare or frequent fade out smoothly, without a clip and without dividing by length.

    A_i  = (s_i - mean_g) / (std_g + 1e-6)
    W_i  = exp(sum_t (logp_it - rollout_logp_it))
    w_i  = W_i^power * exp(decay * (1 - W_i))           1 at W = 1, largest at W = power / decay
    loss = sum over rows and tokens of -sg(w_i) A_i logp_it / tokens

with a power and a decay for A_i >= 0, and others elsewhere.

Choices, where libraries differ: the sum of log-ratios is clamped to +-20. The standard deviation divides by N_g - 1; a
group of one has advantage 0.

Differences from the paper:

1. A divergence from the reference (`kl_loss_coef`) and an entropy bonus may be added.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, of_fields
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import weighted_policy
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage
from purerl.algos.parts.weights import gamma_weight

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"gradient_matches_finite_differences": "the gradient of the weight is stopped on purpose"}


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of VESPO."""

    power_positive: float = number("how fast the weight of a good row falls as it becomes rarer", 2.0, least=0)
    decay_positive: float = number("how fast the weight of a good row falls as it becomes likelier", 3.0, least=0)
    power_negative: float = number("how fast the weight of a bad row falls as it becomes rarer", 3.0, least=0)
    decay_negative: float = number("how fast the weight of a bad row falls as it becomes likelier", 2.0, least=0)
    kl_loss_coef: float = number("weight of the divergence from the reference in the loss", 0.0, least=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """VESPO as `config` sets it."""
    weight = of_fields(
        gamma_weight,
        "logp",
        "rollout_logp",
        "advantage",
        "mask",
        power_positive=config.power_positive,
        decay_positive=config.decay_positive,
        power_negative=config.power_negative,
        decay_negative=config.decay_negative,
    )
    policy = weighted_policy(
        weight,
        token_mean,
        behavior="rollout_logp",
        kl_loss_coef=config.kl_loss_coef,
        entropy_coef=config.entropy_coef,
    )
    return Algorithm(("reward",), outcome_advantage(group_normalized_advantage), (policy,), min_group_size=2)
