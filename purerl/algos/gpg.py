"""GPG, group policy gradient: Chu et al. 2025 (2504.02546).

The policy gradient with the mean of the group as baseline, and neither ratio, nor clipping, nor critic, nor reference.
Groups whose scores are all equal add nothing to the sum and yet enlarge what it is divided by: alpha makes up for it.

    A_i  = alpha (s_i - mean_g)          alpha = rows / rows of groups whose scores differ, over the whole batch
    loss = -sum_it A_i logp_it / tokens

Choices, where libraries differ: the deviation is not divided by a standard deviation (the paper's F_norm is 1); every
token weighs the same; a group of one has advantage 0 and counts as one that does not vary. One optimizer step for each
batch is the algorithm.

Differences from the paper:

1. An entropy bonus may be added.
2. There is no lower bound on the share of groups that vary, below which the paper draws again: `select` is where to
   put it.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, of_fields
from purerl.algos.estimators.group_relative import gpg_advantage
from purerl.algos.parts.policy import policy_objective
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.surrogates import policy_gradient
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"group_independence": "advantages are scaled by the share of groups that vary"}


@frozen(kw_only=True)
class Config:
    """The hyper-parameter of GPG."""

    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """GPG as `config` sets it."""
    policy = policy_objective(
        of_fields(policy_gradient, "logp", "advantage"),
        token_mean,
        reads=("advantage",),
        metrics={},
        kl_loss_coef=0.0,
        entropy_coef=config.entropy_coef,
    )
    return Algorithm(("reward",), outcome_advantage(gpg_advantage), (policy,), min_group_size=2)
