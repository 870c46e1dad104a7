"""GVPO, group variance policy optimization: Zhang et al. 2025 (2504.19599).

The policy that is best in rewards, less what it pays for its distance from where it was, has log-ratios of rewards /
beta, up to one constant for each prompt. Differences within a group are free of that constant. So they are regressed on
the differences of rewards: the loss is a variance, and is 0 at that policy alone, whoever sampled the rows.

    A_i  = s_i - mean_g
    L_i  = sum_t (logp_it - old_logp_it)
    loss = mean over rows of 1/2 N_g / (N_g - 1) (beta * (L_i - mean_g L) - A_i)^2

With groups of one size that is the mean over groups of half the unbiased variance. Its gradient, where the policy has
not moved, is beta times that of RLOO.

Choices, where libraries differ: log-probabilities are summed over counted tokens; a group of one has no loss.

Metrics, each a mean over counted tokens: `kl`, how far the policy has moved, k3, nats; `entropy`, nats.

Differences from the paper:

1. The anchor is the policy when the update began, as in the authors' code; the paper leaves it open.
2. Groups are weighed by their rows: the same where they are of one size.
3. The authors' code stops the gradient of the group's mean, which has none: deviations add up to 0.
"""

from __future__ import annotations

from attrs import frozen
from tensordict import TensorDict

from purerl.algos.algebra import Algorithm, bind
from purerl.algos.estimators.group_relative import group_centered_advantage
from purerl.algos.parts.policy import moved, policy_objective
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.regressions import gvpo_loss
from purerl.algos.parts.rows import broadcast_to_tokens, row_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.surrogates import sequence_log_ratio
from purerl.algos.parts.transforms import outcome_advantage
from purerl.kernels.masks import any_true
from purerl.types import TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"reinforce_gradient_on_policy": "it is a regression: its gradient is beta N / (N - 1) times as large"}


@frozen(kw_only=True)
class Config:
    """The hyper-parameter of GVPO."""

    beta: float = number("reward that a nat of distance from where it was costs the policy", 0.1, above=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """GVPO as `config` sets it."""
    policy = policy_objective(
        bind(_loss, beta=config.beta),
        sequence_mean_of_token_mean,
        reads=("old_logp", "advantage"),
        metrics={"approx_kl": moved},
        kl_loss_coef=0.0,
        entropy_coef=0.0,
    )
    return Algorithm(
        ("reward",), outcome_advantage(group_centered_advantage), (policy._replace(unit="group"),), min_group_size=2
    )


def _loss(batch: TensorDict, *, beta: float) -> TokenFloat:
    mask = batch["mask"]
    log_ratio, advantage = (
        sequence_log_ratio(batch["logp"], batch["old_logp"], mask),
        row_mean(batch["advantage"], mask),
    )
    return broadcast_to_tokens(gvpo_loss(log_ratio, advantage, batch["group"], any_true(mask), beta=beta), mask)
