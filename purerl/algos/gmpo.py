"""GMPO, geometric-mean policy optimization: Zhao et al. 2025 (2507.20673).

GRPO averages the importance ratios of the tokens of a row. An arithmetic mean is sensitive to outliers, so GMPO uses
the geometric mean. The log-ratio of each token is clipped first. A token that has moved too far then has no gradient
and does not dominate the mean.

    A_i  = (s_i - mean_g) / (std_g + 1e-6)
    c_it = min(logp_it - old_logp_it, log_clip_high)    if A_i > 0
           max(logp_it - old_logp_it, -log_clip_low)    else
    l_i  = -A_i exp((1 / n_i) sum_t c_it)
    loss = (1 / rows) sum_i l_i

s_i is the sum of all rewards of row i, and n_i its number of tokens. g is its group: the N_g rows of one prompt. `rows`
is the number of rows of the optimizer step. Losses, means and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- The standard deviation divides by N_g - 1.
- In a group of one row, every advantage is 0.
- With importance weights, verl weights a row by the geometric mean of the weights of its tokens: the level
  geometric_mean of the modifier `importance_weight`.
- `log_clip_low` and `log_clip_high` are bounds of log-ratios in nats, as in the paper. In the other algorithms,
  `clip_low` and `clip_high` are offsets from 1.

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/ratio`: clipped geometric-mean ratio of the row, exp((1 / n_i) sum_t c_it).
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. The loss is a mean over all rows of the optimizer step. The paper first averages within each group. Both are equal if
   all groups have the same size.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from purerl.algos.algebra import Algorithm, bind, of_fields
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import approx_kl, policy_objective
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.surrogates import geometric_mean_ratio
from purerl.algos.parts.transforms import outcome_advantage
from purerl.types import TensorDict, TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"episode_invariance": "the ratio is that of a row, which need not be the whole episode"}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of GMPO."""

    log_clip_low: float = number(
        "log-ratios of tokens with A <= 0 are clipped below -log_clip_low",
        0.4,
        min=0,
        unit="nats",
        infinite="not clipped",
    )
    log_clip_high: float = number(
        "log-ratios of tokens with A > 0 are clipped above log_clip_high",
        0.4,
        min=0,
        unit="nats",
        infinite="not clipped",
    )


def algorithm(config: Config = Config()) -> Algorithm:
    """Build GMPO from `config`."""
    bounds = dict(log_clip_low=config.log_clip_low, log_clip_high=config.log_clip_high)
    ratio = of_fields(geometric_mean_ratio, "logp", "old_logp", "advantage", "mask", **bounds)
    policy = policy_objective(
        bind(_geometric_surrogate, ratio=ratio),
        # Every token has the value of its row, so the mean over tokens is the value of the row.
        sequence_mean_of_token_mean,
        reads=("old_logp", "advantage"),
        metrics={"approx_kl": approx_kl, "ratio": ratio},
    )
    return Algorithm(
        reads=("reward",),
        advantage=outcome_advantage(group_normalized_advantage),
        objectives=(policy,),
        min_group_size=2,
    )


def _geometric_surrogate(batch: TensorDict, *, ratio: Callable) -> TokenFloat:
    return -batch["advantage"] * ratio(batch)
