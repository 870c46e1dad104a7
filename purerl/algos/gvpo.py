"""GVPO, group variance policy optimization: Zhang et al. 2025 (2504.19599).

With a KL penalty of weight beta, the log-ratios of the optimal policy are rewards / beta, up to one constant per
prompt. Differences within a group do not contain this constant. GVPO regresses the differences of log-ratios on the
differences of rewards. The loss is a variance. It is 0 only at the optimal policy, and this holds for rows of any
policy.

    A_i  = s_i - mean_g
    L_i  = sum_t (logp_it - old_logp_it)
    l_i  = N_g / (2 (N_g - 1)) (beta * (L_i - mean_g(L)) - A_i)^2
    loss = (1 / rows) sum_i l_i

If all groups have the same size, the loss is the mean over groups of half the unbiased variance of beta * L_i - s_i. If
the policy is equal to the old policy, the gradient is beta times the gradient of RLOO. A micro-batch contains whole
groups.

s_i is the sum of all rewards of row i. g is its group: the N_g rows of one prompt. `rows` is the number of rows of the
optimizer step. Losses, means and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- Log-probabilities are summed over tokens.
- A group of one row has loss 0.

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. The log-ratio is relative to the policy at the start of the update, as in the authors' code. The paper leaves this
   open.
2. A group is weighted by its number of rows. This makes no difference if all groups have the same size.
3. The authors' code stops the gradient of the group mean. The gradient is the same without this, because deviations
   from the mean add up to 0.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, bind
from purerl.algos.estimators.group_relative import group_centered_advantage
from purerl.algos.parts.policy import approx_kl, policy_objective
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.regressions import gvpo_loss
from purerl.algos.parts.rows import broadcast_to_tokens, row_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.surrogates import sequence_log_ratio
from purerl.algos.parts.transforms import outcome_advantage
from purerl.kernels.masks import any_true
from purerl.types import TensorDict, TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "episode_invariance": "the regression is of the log-ratio of a row, which need not be the whole episode",
    "reinforce_gradient_on_policy": "it is a regression, whose gradient is beta N / (N - 1) times as large",
}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of GVPO."""

    beta: float = number("weight of the KL penalty, in reward per nat", 0.1, above=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build GVPO from `config`."""
    policy = policy_objective(
        bind(_gvpo_loss, beta=config.beta),
        sequence_mean_of_token_mean,
        reads=("old_logp", "advantage"),
        metrics={"approx_kl": approx_kl},
    )
    return Algorithm(
        reads=("reward",),
        advantage=outcome_advantage(group_centered_advantage),
        objectives=(policy._replace(unit="group"),),
        min_group_size=2,
    )


def _gvpo_loss(batch: TensorDict, *, beta: float) -> TokenFloat:
    mask = batch["mask"]
    log_ratio = sequence_log_ratio(batch["logp"], batch["old_logp"], mask)
    advantage = row_mean(batch["advantage"], mask)
    return broadcast_to_tokens(gvpo_loss(log_ratio, advantage, batch["group"], any_true(mask), beta=beta), mask)
