"""Importance weights of the policy loss, for rows that were sampled by another policy than the old one.

    k_it = exp(sum_t (old_logp_it - rollout_logp_it))     if level = sequence
           exp(old_logp_it - rollout_logp_it)             else
    b_it = min(k_it, max_ratio)                           if how = truncate
           k_it                                           if how = band and min_ratio <= k_it <= max_ratio
           0                                              if how = band and k_it is outside
           min(max(k_it, min_ratio), max_ratio)           if how = clamp
    w_it = exp((1 / n_i) sum_t log b_it)                  if level = geometric_mean
           b_it                                           else
    l_it = sg(w_it) p_it

p_it is the policy loss of the algorithm at token t of row i, which has n_i tokens. sg() stops the gradient. Exponents
are clamped to +-20.

The rollout policy differs from the old policy, the policy at the start of the update, if the generator uses other
kernels or another precision than the trainer, or if its weights are some steps old. Only the policy loss is weighted, a
KL term or an entropy bonus is not. A token with the weight 0 stays in the denominators.

With `normalize`, weights are divided by their mean over the counted tokens of the whole batch, and weights of rows
by their mean over its rows. If every weight is 0, they stay 0.

    truncate     TIS. verl: `rollout_is` with one threshold; TRL: token_truncate, sequence_truncate
    band         IcePop, with the bounds 0.5 and 5. verl: `rollout_is` with two thresholds; TRL: token_mask and
                 sequence_mask
    clamp        OpenRLHF, NeMo-RL; TRL: token_truncate and sequence_truncate with a lower bound
    normalize    verl: `rollout_is_batch_normalize`
    level        verl: `rollout_is`; with the loss of GMPO, verl's token weights are those of geometric_mean. With
                 `normalize`, verl divides by the mean over tokens, before it takes the geometric mean

The metrics `weight`, `weight_square`, `chi2`, `log_perplexity_gap` and `rejected_fraction` are described in
`parts.corrections`. A `rejection` that comes later in the list of modifiers is applied before the weights are computed.

Where the ratio of the loss is already relative to the rollout policy, as in TOPR, VESPO, DPPO and M2PO or after
`bypass`, it contains the factor k_it, and the weight applies it a second time.

Sources: truncated importance sampling, Yao et al. 2025; IcePop (2510.18855); decoupled PPO (2110.00641, 2505.24298).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import frozen

from purerl.algos.algebra import Algorithm, Bound, bind
from purerl.algos.parts.corrections import (
    banded_ratio,
    clamped_ratio,
    geometric_mean_weight,
    sequence_weight,
    token_weight,
    truncated_ratio,
    with_corrections,
)
from purerl.algos.parts.rows import row_mean, row_sum
from purerl.algos.parts.settings import choice, flag, number, require_below
from purerl.batch import with_fields
from purerl.errors import ConfigError
from purerl.kernels.masks import any_true, count_true
from purerl.types import Scalar, TensorDict, TokenBool, TokenFloat

__all__ = ["Config", "exemptions", "modify"]


def _mean_over_tokens(weight: TokenFloat, mask: TokenBool) -> Scalar:
    return row_sum(weight, mask).sum(-1) / count_true(mask).sum(-1).clamp(min=1)


def _mean_over_rows(weight: TokenFloat, mask: TokenBool) -> Scalar:
    return row_mean(weight, mask).sum(-1) / any_true(mask).sum(-1).clamp(min=1)


_LEVELS = {
    "token": (token_weight, _mean_over_tokens),
    "sequence": (sequence_weight, _mean_over_rows),
    "geometric_mean": (geometric_mean_weight, _mean_over_rows),
}
_WITH_TWO_BOUNDS = {"band": banded_ratio, "clamp": clamped_ratio}


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `importance_weight`."""

    level: str = choice("what has a weight: a token, or a row by its ratio or by its tokens' weights", _LEVELS, "token")
    how: str = choice("weight of a ratio outside of the bounds", ("truncate", *_WITH_TWO_BOUNDS), "truncate")
    max_ratio: float = number(
        "upper bound of the ratio of trainer and generator", 2.0, min=1, infinite="no upper bound"
    )
    min_ratio: float = number("lower bound of the ratio, with band or clamp", 0.0, min=0, max=1)
    normalize: bool = flag("divide the weights by their mean over the batch")

    def __attrs_post_init__(self) -> None:
        got = f"{self.min_ratio:g}, with how = {self.how}"
        if self.how == "truncate" and self.min_ratio:
            raise ConfigError(
                "min_ratio", got=got, need="0: truncate has no lower bound", do="set how to band or clamp"
            )
        if self.how == "clamp" and not self.min_ratio:
            raise ConfigError("min_ratio", got=got, need="a number above 0: without a lower bound, clamp is truncate")
        require_below(self, "min_ratio", "max_ratio")


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with importance weights in its policy loss.

    Raises: ConfigError for an algorithm without a policy gradient or a surrogate of it.
    """
    weighted, mean = _LEVELS[config.level]
    correction = weighted(_weight(config))
    return with_corrections(
        algorithm, bind(_normalized, correction=correction, mean=mean) if config.normalize else correction
    )


def exemptions(config: Config) -> dict[str, str]:
    """The laws that need not hold for an algorithm with this modifier."""
    exempt = {}
    if config.normalize:
        exempt["group_independence"] = "weights are divided by their mean over the batch"
    if config.level == "token":
        reason = "in GSPO, a ratio has the value of its row and the gradient of its token, whose weights differ"
        exempt["gradient_matches_finite_differences"] = reason
    return exempt


def _weight(config: Config) -> Bound:
    if config.how == "truncate":
        return bind(truncated_ratio, ratio_cap=config.max_ratio)
    return bind(_WITH_TWO_BOUNDS[config.how], min_ratio=config.min_ratio, max_ratio=config.max_ratio)


def _normalized(batch: TensorDict, *, correction: Callable, mean: Callable) -> TensorDict:
    """Multiply `weight` by the weights of `correction` alone, divided by their mean."""
    factor = correction(with_fields(batch, weight=torch.ones_like(batch["weight"])))["weight"]
    divisor = mean(factor, batch["mask"])
    return with_fields(batch, weight=batch["weight"] * factor / torch.where(divisor > 0, divisor, 1))
