"""DRO, direct reward optimization: Richemond et al. 2024 (2405.19107).

The best policy at some distance from another one has a closed form, and squared error to it is a loss that needs no
importance weights: rows may come from anywhere. What is left of it, token by token, is the policy gradient and a
quadratic pull toward where the policy was.

    A_i  = s_i - mean_g
    loss = sum over rows and tokens of -A_i logp_it + beta / 2 (logp_it - old_logp_it)^2 / tokens

Choices, where libraries differ: every token of an optimizer step weighs the same. A group of one has advantage 0.
`beta` is ours; the paper tunes it [unverified].

Differences from the paper:

1. The square is that of each token's log-ratio, as in verl and Tinker; the paper's is that of the row's sum.
2. The pull is toward the policy as the update began; the paper's is toward the reference.
3. The baseline is the mean of the group; the paper learns a value V for each prompt, in single rows [unverified].
4. An entropy bonus may be added.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, Term, of_fields
from purerl.algos.estimators.group_relative import group_centered_advantage
from purerl.algos.parts.divergences import k2
from purerl.algos.parts.policy import moved, policy_objective
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.surrogates import policy_gradient
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of DRO."""

    beta: float = number("how strongly the policy is held to where it was", 0.05, above=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """DRO as `config` sets it."""
    policy = policy_objective(
        of_fields(policy_gradient, "logp", "advantage"),
        token_mean,
        reads=("old_logp", "advantage"),
        metrics={"approx_kl": moved},
        kl_loss_coef=0.0,
        entropy_coef=config.entropy_coef,
    )
    pull = Term("pull", of_fields(k2, "logp", "old_logp"), token_mean, weight=config.beta)
    policy = policy._replace(terms=(*policy.terms, pull))
    return Algorithm(("reward",), outcome_advantage(group_centered_advantage), (policy,), min_group_size=2)
