"""TOPR, tapered off-policy REINFORCE: Le Roux et al. 2025 (2503.14286).

TOPR is for rows that were sampled by an older or a different policy. Rows with positive advantage are used without an
importance weight. Rows with negative advantage are weighted by their importance ratio, at most 1. Without this weight,
the log-probability of completions that the policy no longer samples would fall without limit.

    A_i  = s_i - mean_g
    W_i  = exp(sum_t (logp_it - rollout_logp_it))
    w_i  = 1              if A_i >= 0
           min(W_i, 1)    else
    loss = -(1 / rows) sum_i sg(w_i) A_i sum_t logp_it

s_i is the sum of all rewards of row i. g is its group: the N_g rows of one prompt. `rows` is the number of rows of the
optimizer step. Losses, means and counts cover only tokens where `mask` is 1. sg() stops the gradient.

Choices that differ between libraries:

- There is one weight per row, as in the paper. ROLL has one weight per token.
- In a group of one row, every advantage is 0.

Metrics, means over the tokens where `mask` is 1:

- `policy/sampler_kl`: k3 estimate of KL(rollout policy || policy), nats.
- `policy/weight`: weight w_i.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. The baseline is the mean of the group, so rewards can have any scale. The paper has a constant baseline, with rewards
   of 1 and -1. A group without variance has no gradient here.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, of_fields
from purerl.algos.estimators.group_relative import group_centered_advantage
from purerl.algos.parts.policy import weighted_policy
from purerl.algos.parts.reductions import sequence_mean_of_token_sum
from purerl.algos.parts.transforms import outcome_advantage
from purerl.algos.parts.weights import tapered_weight

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "episode_invariance": "the weight is that of a row, which need not be the whole episode",
    "gradient_matches_finite_differences": "the weight is detached, so the gradient is not the derivative of the loss",
}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of TOPR."""


def algorithm(config: Config = Config()) -> Algorithm:
    """Build TOPR from `config`."""
    policy = weighted_policy(
        of_fields(tapered_weight, "logp", "rollout_logp", "advantage", "mask"),
        sequence_mean_of_token_sum,
        behavior="rollout_logp",
    )
    return Algorithm(
        reads=("reward",), advantage=outcome_advantage(group_centered_advantage), objectives=(policy,), min_group_size=2
    )
