"""Importance policy optimization: the loss `ipo` of prime-rl, Prime Intellect 2026.

A token has the ratio to the rollout policy as its weight, without a clip. If its probability has changed by more than
`divergence_bound`, in either direction, it is dropped. A quadratic penalty keeps all log-ratios small, also those of
dropped tokens, which would otherwise have no gradient that brings them back.

    A_i  = s_i - mean_g
    d_it = logp_it - rollout_logp_it
    w_it = exp(d_it)    if abs(exp(logp_it) - exp(rollout_logp_it)) <= divergence_bound
           0            else
    loss = (1 / tokens) sum_it (-sg(w_it) A_i logp_it + mismatch_coef d_it^2)

The rest is as in `dppo`. The name `ipo` is that of a loss of pairs here.

Choices that differ between libraries:

- The preset `importance@prime_rl` is a later version of the same loss: the bound is 0.3, and there is no penalty.
- In a group of one row, every advantage is 0.

Differences from the source:

1. The gradient is that of prime-rl, the value is not: there, the policy loss of a token is -A_i exp(d_it).
2. Ratios are clamped to exp(+-20).
3. The settings are those of prime-rl between its pull requests 3418 and 3586.
"""

from __future__ import annotations

import math

from attrs import frozen

from purerl.algos import dppo
from purerl.algos.algebra import Algorithm, Term, of_fields
from purerl.algos.estimators.group_relative import group_centered_advantage
from purerl.algos.parts.divergences import k2
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = dppo.EXEMPTIONS


@frozen(kw_only=True)
class Config:
    """Hyperparameters of importance policy optimization."""

    divergence_bound: float = number("a token is dropped if its probability has changed by more than this", 0.1, min=0)
    mismatch_coef: float = number("coefficient of the squared log-ratio to the rollout policy", 1e-3, min=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build importance policy optimization from `config`."""
    bound = config.divergence_bound
    settings = dppo.Config(divergence_low=bound, divergence_high=bound, ratio_cap=math.inf, direction="any")
    dropping = dppo.algorithm(settings)
    [policy] = dropping.objectives
    squares = of_fields(k2, "logp", "rollout_logp")
    mismatch = Term("mismatch", squares, token_mean, weight=2 * config.mismatch_coef, follows_policy=True)
    policy = policy._replace(terms=(*policy.terms, mismatch) if config.mismatch_coef else policy.terms)
    return dropping._replace(advantage=outcome_advantage(group_centered_advantage), objectives=(policy,))
