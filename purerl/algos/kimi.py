"""Kimi k1.5 policy optimization, online mirror descent: Kimi Team 2025 (2501.12599).

With a penalty on the distance from the policy at the start of the iteration, the best policy has a closed form. Kimi
k1.5 minimizes the squared error to this solution, with the mean reward of the group in place of the normalizer. The
gradient is the gradient of REINFORCE with this baseline, plus the gradient of a quadratic penalty on the log-ratio of
whole rows.

    A_i  = s_i - mean_g
    L_i  = sum_t (logp_it - old_logp_it)
    l_i  = -A_i sum_t logp_it + beta / 2 * L_i^2
    loss = (1 / rows) sum_i l_i

s_i is the sum of all rewards of row i. g is its group: the N_g rows of one prompt. `rows` is the number of rows of the
optimizer step. Losses, means and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- The log-ratio is summed over the row and then squared. ROLL squares it token by token, which is `dro`.
- In a group of one row, every advantage is 0.
- The loss of PMD-mean (2602.05933) is (L_i - A_i / beta)^2 / 2 for each row, with the same gradient times 1 / beta.
- `beta` is the paper's tau. The paper does not publish it; the default is ours (unverified).

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. The paper's length penalty, curriculum and sampling are not part of the algorithm. They belong to rewards and data.
2. The optimizer is not reset at the start of an iteration.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, Term, of_fields
from purerl.algos.estimators.group_relative import group_centered_advantage
from purerl.algos.parts.policy import approx_kl, policy_objective
from purerl.algos.parts.reductions import sequence_mean_of_token_mean, sequence_mean_of_token_sum
from purerl.algos.parts.rows import broadcast_to_tokens
from purerl.algos.parts.settings import number
from purerl.algos.parts.surrogates import policy_gradient, sequence_log_ratio
from purerl.algos.parts.transforms import outcome_advantage
from purerl.types import TensorDict, TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"episode_invariance": "the penalty is of the log-ratio of a row, which need not be the whole episode"}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of Kimi k1.5 policy optimization."""

    beta: float = number("coefficient of the quadratic penalty on the log-ratio", 0.1, above=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build Kimi k1.5 policy optimization from `config`."""
    policy = policy_objective(
        of_fields(policy_gradient, "logp", "advantage"),
        sequence_mean_of_token_sum,
        reads=("old_logp", "advantage"),
        metrics={"approx_kl": approx_kl},
    )
    # Every token has the value of its row, so the mean over tokens is the value of the row.
    penalty = Term("penalty", _squared_log_ratio, sequence_mean_of_token_mean, weight=config.beta)
    policy = policy._replace(terms=(*policy.terms, penalty))
    return Algorithm(
        reads=("reward",), advantage=outcome_advantage(group_centered_advantage), objectives=(policy,), min_group_size=2
    )


def _squared_log_ratio(batch: TensorDict) -> TokenFloat:
    mask = batch["mask"]
    return broadcast_to_tokens(sequence_log_ratio(batch["logp"], batch["old_logp"], mask).square() / 2, mask)
