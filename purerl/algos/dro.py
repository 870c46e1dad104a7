"""DRO, direct reward optimization: Richemond et al. 2024 (2405.19107).

With a penalty on the distance from another policy, the best policy has a closed form. DRO minimizes the squared error
to this solution. It needs no importance weights, so the rows can come from any policy. Per token, the loss is the
policy gradient plus a quadratic penalty on the log-ratio to the old policy.

    A_i  = s_i - mean_g
    l_it = -A_i logp_it + beta / 2 * (logp_it - old_logp_it)^2
    loss = (1 / tokens) sum_it l_it

s_i is the sum of all rewards of row i. g is its group: the N_g rows of one prompt. `tokens` is the number of tokens of
the optimizer step. Losses, means and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- Every token of the optimizer step has the same weight.
- In a group of one row, every advantage is 0.
- The default of `beta` is ours. The paper tunes it (unverified).

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. The log-ratio of each token is squared, as in verl and Tinker. The paper squares the sum over the row.
2. The penalty is relative to the policy at the start of the update. In the paper, it is relative to the reference
   model.
3. The baseline is the mean of the group. The paper learns a value V for each prompt, from single rows (unverified).
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, Term, of_fields
from purerl.algos.estimators.group_relative import group_centered_advantage
from purerl.algos.parts.divergences import k2
from purerl.algos.parts.policy import approx_kl, policy_objective
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.surrogates import policy_gradient
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """Hyperparameters of DRO."""

    beta: float = number("coefficient of the quadratic penalty on the log-ratio", 0.05, above=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build DRO from `config`."""
    policy = policy_objective(
        of_fields(policy_gradient, "logp", "advantage"),
        token_mean,
        reads=("old_logp", "advantage"),
        metrics={"approx_kl": approx_kl},
    )
    squares = of_fields(k2, "logp", "old_logp")
    penalty = Term("penalty", squares, token_mean, weight=config.beta, follows_policy=True)
    policy = policy._replace(terms=(*policy.terms, penalty))
    return Algorithm(
        reads=("reward",), advantage=outcome_advantage(group_centered_advantage), objectives=(policy,), min_group_size=2
    )
