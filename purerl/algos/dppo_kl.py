"""DPPO, divergence PPO, by Kullback-Leibler divergence: Qi et al. 2026 (2602.04879).

PPO's ratio overrates rare tokens, whose ratio is large though hardly any probability has moved, and underrates frequent
ones. DPPO drops a token when the divergence of the policy from the sampler is too large, estimated from the one token:
"this token, or another". `dppo` measures it in another way.

    A_i  = (s_i - mean_g) / (std_g + 1e-6)
    p_it = exp(logp_it), q_it = exp(rollout_logp_it)
    D_it = q_it log(q_it / p_it) + (1 - q_it) log((1 - q_it) / (1 - p_it))
    w_it = 0 where (A_i > 0, p > q, D > divergence_high) or (A_i < 0, p < q, D > divergence_low)
           min(p_it / q_it, ratio_cap) elsewhere
    loss = sum over rows and tokens of -sg(w_it) A_i logp_it / tokens

The policy is compared with the sampler, not with itself when the update began, so that the difference between two
engines counts as well.

Choices, where libraries differ: every token of an optimizer step weighs the same. The standard deviation divides by
N_g - 1; a group of one has advantage 0.

Differences from the paper:

1. The ratio is capped, as in the authors' code (`ratio_cap`); the paper's is not.
2. A divergence from the reference (`kl_loss_coef`) and an entropy bonus may be added.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, of_fields
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import weighted_policy
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage
from purerl.algos.parts.weights import token_kl, trusted_weight

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"gradient_matches_finite_differences": "the gradient of the weight is stopped on purpose"}


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of DPPO by Kullback-Leibler divergence."""

    divergence_low: float = number("divergence beyond which no token is made rarer", 0.05, least=0)
    divergence_high: float = number("divergence beyond which no token is made likelier", 0.05, least=0)
    ratio_cap: float = number("the ratio counts for no more than this", 10.0, above=0)
    kl_loss_coef: float = number("weight of the divergence from the reference in the loss", 0.0, least=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """DPPO by Kullback-Leibler divergence, as `config` sets it."""
    weight = of_fields(
        trusted_weight,
        "logp",
        "rollout_logp",
        "advantage",
        divergence=token_kl,
        divergence_low=config.divergence_low,
        divergence_high=config.divergence_high,
        ratio_cap=config.ratio_cap,
    )
    policy = weighted_policy(
        weight,
        token_mean,
        behavior="rollout_logp",
        kl_loss_coef=config.kl_loss_coef,
        entropy_coef=config.entropy_coef,
    )
    return Algorithm(("reward",), outcome_advantage(group_normalized_advantage), (policy,), min_group_size=2)
