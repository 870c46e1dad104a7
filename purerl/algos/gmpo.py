"""GMPO, geometric-mean policy optimization: Zhao et al. 2025 (2507.20673).

GRPO averages the ratios of a row's tokens, and a mean follows its outliers. GMPO takes their geometric mean. Each token
is clipped before, so that one that has moved far neither has a gradient nor drags the row along.

    A_i  = (s_i - mean_g) / (std_g + 1e-6)
    c_it = min(logp_it - old_logp_it, log_clip_high) where A_i > 0, else max(logp_it - old_logp_it, -log_clip_low)
    l_i  = -exp((1 / n_i) sum_t c_it) A_i                               n_i: counted tokens
    loss = mean over rows of l_i

Choices, where libraries differ: the standard deviation divides by N_g - 1; a group of one has advantage 0. The bounds
are those of log-ratios, in nats, as in the paper: they are not called `clip_low` and `clip_high`, which are offsets
from 1.

Differences from the paper:

1. A divergence from the reference (`kl_loss_coef`) and an entropy bonus may be added.
2. The mean is over all rows of an optimizer step, not first over the rows of each group: the same where groups are of
   one size.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen
from tensordict import TensorDict

from purerl.algos.algebra import Algorithm, bind, of_fields
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import moved, policy_objective
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.surrogates import geometric_ratio
from purerl.algos.parts.transforms import outcome_advantage
from purerl.types import TokenFloat

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of GMPO."""

    log_clip_low: float = number("how far a log-ratio may fall below 0 before it is clipped", 0.4, least=0, unit="nats")
    log_clip_high: float = number(
        "how far a log-ratio may rise above 0 before it is clipped", 0.4, least=0, unit="nats"
    )
    kl_loss_coef: float = number("weight of the divergence from the reference in the loss", 0.0, least=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """GMPO as `config` sets it."""
    bounds = dict(log_clip_low=config.log_clip_low, log_clip_high=config.log_clip_high)
    ratio = of_fields(geometric_ratio, "logp", "old_logp", "advantage", "mask", **bounds)
    policy = policy_objective(
        bind(_surrogate, ratio=ratio),
        # A row's value at each of its tokens: the mean over tokens is the row's value.
        sequence_mean_of_token_mean,
        reads=("old_logp", "advantage"),
        metrics={"approx_kl": moved, "ratio": ratio},
        kl_loss_coef=config.kl_loss_coef,
        entropy_coef=config.entropy_coef,
    )
    return Algorithm(("reward",), outcome_advantage(group_normalized_advantage), (policy,), min_group_size=2)


def _surrogate(batch: TensorDict, *, ratio: Callable) -> TokenFloat:
    return -batch["advantage"] * ratio(batch)
