"""M2PO, second-moment trust policy optimization: Zheng et al. 2025 (2510.01161).

Rows may be many updates old. Clipping every token at the same ratio throws away most of what is rare and informative.
M2PO bounds the second moment of the log-ratios of the whole step instead: as few tokens are left out as it takes, those
that have moved farthest, and nothing else is clipped.

    A_i  = (s_i - mean_g) / (std_g + 1e-6)
    e_it = old_logp_it - rollout_logp_it
    P    = the fewest tokens of largest e^2 without which the mean of e^2 is at most moment_bound, of those with
           (A_i > 0, e > 0) or (A_i < 0, e < 0)
    l_it = 0 where it in P, else -A_i exp(logp_it - rollout_logp_it)
    loss = sum over rows and tokens of l_it / tokens

Choices, where libraries differ: the mean is over the tokens that have moved where their advantage sends them (AReaL:
over all). A token in P stays in the denominator; the ratio of the others is not clipped (the authors' code clips it).
The standard deviation divides by N_g - 1; a group of one has advantage 0.

Differences from the paper:

1. Tokens are chosen over the whole optimizer step, from `old_logp` (the paper: from the log-probabilities now): the
   choice does not depend on how a step is cut, and the two are the same in the first optimizer step after rollouts.
2. With the last token of P those go that equal it.
3. A divergence from the reference (`kl_loss_coef`) and an entropy bonus may be added.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, of_fields
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import dropping, from_sampler, policy_objective
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.selection import excess_moment
from purerl.algos.parts.settings import number
from purerl.algos.parts.surrogates import importance_surrogate, token_ratio
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"group_independence": "tokens are chosen over the whole step"}


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of M2PO."""

    moment_bound: float = number("how large the mean of squared log-ratios may be", 0.04, least=0, unit="nats^2")
    kl_loss_coef: float = number("weight of the divergence from the reference in the loss", 0.0, least=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """M2PO as `config` sets it."""
    policy = policy_objective(
        of_fields(importance_surrogate, "logp", "rollout_logp", "advantage"),
        token_mean,
        reads=("rollout_logp", "advantage"),
        metrics={"sampler_kl": from_sampler, "weight": of_fields(token_ratio, "logp", "rollout_logp")},
        kl_loss_coef=config.kl_loss_coef,
        entropy_coef=config.entropy_coef,
    )
    choice = of_fields(excess_moment, "old_logp", "rollout_logp", "advantage", "mask", moment_bound=config.moment_bound)
    return Algorithm(
        ("reward",),
        outcome_advantage(group_normalized_advantage),
        (dropping(policy, choice, "old_logp"),),
        min_group_size=2,
    )
