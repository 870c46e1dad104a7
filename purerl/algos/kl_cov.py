"""KL-Cov: Cui et al. 2025, The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models (2505.22617).

A policy loses its entropy through few tokens: those whose likelihood and advantage are both high (or both low), for
their covariance is what entropy falls by. So just these tokens are held near to where they were; nothing is clipped.

    A_i    = (s_i - mean_g) / (std_g + 1e-6)
    cov_it = (old_logp_it - mean old_logp) (A_it - mean A)
    P      = the max(1, floor(top_fraction * tokens)) tokens of largest cov, of those above 0
    l_it   = -A_i r_it + penalty_coef * [it in P] * abs(logp_it - old_logp_it)
    loss   = sum over rows and tokens of l_it / tokens

The penalty has a gradient only once the policy has moved: in a batch's first optimizer step there is none, so it takes
two or more for the algorithm to differ from an unclipped one.

Choices, where libraries differ: `top_fraction` is the paper's for 7B models (32B: 2e-4), `penalty_coef` the paper's
(verl: 0.1). The standard deviation divides by N_g - 1; a group of one has advantage 0.

Differences from the paper:

1. Covariances are taken over the whole optimizer step, from `old_logp` (the authors' code: over a micro-batch, from the
   log-probabilities now): so the choice does not depend on how a step is cut.
2. Only covariances above 0 are chosen, and with the last one those that equal it: so the choice does not depend on the
   order of rows. The paper takes exactly so many.
3. A divergence from the reference (`kl_loss_coef`) and an entropy bonus may be added.
"""

from __future__ import annotations

import torch
from attrs import frozen

from purerl.algos.algebra import Algorithm, Objective, Term, of_fields, writes
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import moved, per_token, policy_objective
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.selection import largest_covariance
from purerl.algos.parts.settings import number
from purerl.algos.parts.surrogates import importance_surrogate
from purerl.algos.parts.transforms import outcome_advantage
from purerl.types import TokenBool, TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm", "distance_penalty"]

EXEMPTIONS = {"group_independence": "tokens are chosen over the whole step"}


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of KL-Cov."""

    top_fraction: float = number("share of the tokens that is penalized", 2e-3, above=0, most=1)
    penalty_coef: float = number("weight of their distance from where they were", 1.0, above=0)
    kl_loss_coef: float = number("weight of the divergence from the reference in the loss", 0.0, least=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def distance_penalty(logp: TokenFloat, old_logp: TokenFloat, penalized: TokenBool) -> TokenFloat:
    """abs(logp - old_logp) at penalized tokens, 0 elsewhere."""
    return torch.where(penalized, (logp - old_logp).abs(), 0)


def algorithm(config: Config = Config()) -> Algorithm:
    """KL-Cov as `config` sets it."""
    return Algorithm(("reward",), outcome_advantage(group_normalized_advantage), (_policy(config),), min_group_size=2)


def _policy(config: Config) -> Objective:
    choice = of_fields(largest_covariance, "old_logp", "advantage", "mask", top_fraction=config.top_fraction)
    penalty = of_fields(distance_penalty, "logp", "old_logp", "penalized")
    policy = policy_objective(
        of_fields(importance_surrogate, "logp", "old_logp", "advantage"),
        token_mean,
        reads=("old_logp", "advantage", "penalized"),
        metrics={"approx_kl": moved, "ratio": per_token},
        kl_loss_coef=config.kl_loss_coef,
        entropy_coef=config.entropy_coef,
    )
    terms = (*policy.terms, Term("penalty", penalty, token_mean, weight=config.penalty_coef))
    return policy._replace(prepare=writes("penalized", choice), terms=terms)
