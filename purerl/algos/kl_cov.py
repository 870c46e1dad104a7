"""KL-Cov, a KL penalty for tokens of high covariance: Cui et al. 2025 (2505.22617).

A few tokens cause most of the loss of entropy: those whose log-probability and advantage have a large covariance.
KL-Cov penalizes the distance of these tokens from the old policy. Nothing is clipped. Use it if the entropy of the
policy collapses during training.

    A_i    = (s_i - mean_g) / (std_g + 1e-6)
    r_it   = exp(logp_it - old_logp_it)
    cov_it = (old_logp_it - mean(old_logp)) (A_i - mean(A))
    l_it   = -A_i r_it + penalty_coef * abs(logp_it - old_logp_it)    if token (i, t) is in P
             -A_i r_it                                                else
    loss   = (1 / tokens) sum_it l_it

P is the set of the max(1, floor(top_fraction * tokens)) tokens with the largest cov_it, among those with cov_it > 0.
mean() is over all tokens of the optimizer step.

The penalty has no gradient as long as logp_it = old_logp_it, that is, in the first optimizer step of a batch. Use two
or more optimizer steps per batch; with one, the algorithm is an unclipped GRPO with token mean.

s_i is the sum of all rewards of row i. g is its group: the N_g rows of one prompt. `tokens` is the number of tokens of
the optimizer step. Losses, means and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- The default of `top_fraction` is the paper's for models of 7B parameters (32B: 2e-4).
- The default of `penalty_coef` is the paper's (verl: 0.1).
- The standard deviation divides by N_g - 1.
- In a group of one row, every advantage is 0.

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/ratio`: importance ratio r_it.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. Covariances are computed over the whole optimizer step, from `old_logp`. The choice of tokens then does not depend on
   the micro-batches. The authors' code computes them per micro-batch, from the current log-probabilities.
2. P contains only covariances above 0, and also the tokens that tie with its last one. The choice then does not depend
   on the order of rows. The paper takes exactly the given number of tokens.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, Term, of_fields, write_field
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.divergences import absolute_log_ratio
from purerl.algos.parts.policy import approx_kl, policy_objective, token_level_ratio
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.selection import high_covariance_tokens
from purerl.algos.parts.settings import number
from purerl.algos.parts.surrogates import importance_surrogate
from purerl.algos.parts.transforms import outcome_advantage
from purerl.kernels.masks import masked
from purerl.types import TokenBool, TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm", "distance_penalty"]

EXEMPTIONS = {"group_independence": "tokens are chosen over the whole optimizer step"}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of KL-Cov."""

    top_fraction: float = number("fraction of tokens that are penalized", 2e-3, above=0, max=1)
    penalty_coef: float = number("coefficient of their penalty, abs(logp - old_logp)", 1.0, above=0)


def distance_penalty(logp: TokenFloat, old_logp: TokenFloat, penalized: TokenBool) -> TokenFloat:
    """abs(logp - old_logp) at penalized tokens, 0 at other tokens. Shapes: [rows, time]."""
    return masked(absolute_log_ratio(logp, old_logp), penalized)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build KL-Cov from `config`."""
    choice = of_fields(high_covariance_tokens, "old_logp", "advantage", "mask", top_fraction=config.top_fraction)
    penalty = of_fields(distance_penalty, "logp", "old_logp", "penalized")
    policy = policy_objective(
        of_fields(importance_surrogate, "logp", "old_logp", "advantage"),
        token_mean,
        reads=("old_logp", "advantage", "penalized"),
        metrics={"approx_kl": approx_kl, "ratio": token_level_ratio},
    )
    term = Term("penalty", penalty, token_mean, weight=config.penalty_coef, follows_policy=True)
    return Algorithm(
        reads=("reward",),
        advantage=outcome_advantage(group_normalized_advantage),
        objectives=(policy._replace(prepare=write_field("penalized", choice), terms=(*policy.terms, term)),),
        min_group_size=2,
    )
