"""BAPO, balanced policy optimization: 2025 (2510.18927).

With stale rows, tokens with a negative advantage dominate the loss of PPO, and its clip removes the gradients of
positive tokens that have become likely. BAPO chooses the clip bounds of each optimizer step so that the positive tokens
contribute at least `target` times as much as the negative ones.

    k_it = exp(old_logp_it - rollout_logp_it)
    P    = sum_it min(k_it, high) max(A_i, 0)
    Q    = sum_it max(k_it, low) max(-A_i, 0)
    r_it = exp(logp_it - rollout_logp_it)
    l_it = max(-A_i min(r_it, ratio_cap), -A_i clip(r_it, low, high))
    loss = (1 / tokens) sum_it l_it

First `low` is raised from low_start to low_max, in steps of `step`, until P is at least target * Q. If it is not, then
`high` is raised from high_start to high_max in the same way. If it never is, both are at their maximum. The sums are
over all counted tokens of the optimizer step. `tokens` is their number. The advantage is that of `grpo`.

Choices that differ between libraries:

- The order of the bounds, their contributions, and the dual clip at `ratio_cap` are those of the authors' code. In the
  paper, `high` is raised first and then `low`, and P is compared with the whole loss, in which tokens are weighted by
  their old probability (unverified).
- Bounds are ratios themselves, and not offsets from 1.
- In a group of one row, every advantage is 0.

Metrics, means over the tokens where `mask` is 1:

- `policy/sampler_kl`: k3 estimate of KL(rollout policy || policy), nats.
- `policy/ratio`: ratio r_it.
- `policy/ratio_low` and `policy/ratio_high`: the bounds, means over rows.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the authors' code:

1. The bounds are chosen at the start of the update, from k, so that they do not depend on micro-batches. The authors'
   code chooses them for each micro-batch, with the current policy. Both are equal in the first optimizer step, if the
   old policy of the authors' code is the rollout policy.
2. The ratios are to the rollout policy, which is the old policy of the authors' code if its rows are stale.
"""

from __future__ import annotations

import math

import torch
from attrs import frozen

from purerl.algos.algebra import Algorithm, Objective, bind, of_fields
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.adaptive import with_coefficient
from purerl.algos.parts.policy import policy_objective, sampler_kl
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.settings import number, require_below
from purerl.algos.parts.surrogates import token_ratio
from purerl.algos.parts.transforms import outcome_advantage
from purerl.batch import with_fields
from purerl.kernels.masks import masked
from purerl.types import Scalar, TensorDict, TokenBool, TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

_ratio = of_fields(token_ratio, "logp", "rollout_logp")

EXEMPTIONS = {"group_independence": "the bounds are chosen over the whole optimizer step"}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of BAPO."""

    low_start: float = number("lower bound of the ratio, before it is raised", 0.6, min=0, max=1)
    low_max: float = number("largest lower bound of the ratio", 0.8, min=0, max=1)
    high_start: float = number("upper bound of the ratio, before it is raised", 1.2, min=1)
    high_max: float = number("largest upper bound of the ratio", 2.0, min=1)
    step: float = number("by which a bound is raised", 0.05, min=0.01)
    target: float = number("the positive tokens contribute at least this many times as much as the others", 1.0, min=0)
    ratio_cap: float = number("largest ratio of a token with a negative advantage", 3.0, above=1)

    def __attrs_post_init__(self) -> None:
        require_below(self, "low_start", "low_max")
        require_below(self, "high_start", "high_max")
        require_below(self, "high_max", "ratio_cap")


def algorithm(config: Config = Config()) -> Algorithm:
    """Build BAPO from `config`."""
    policy = policy_objective(
        bind(_bounded_surrogate, ratio_cap=config.ratio_cap),
        token_mean,
        reads=("old_logp", "rollout_logp", "advantage", "ratio_low", "ratio_high"),
        metrics={"sampler_kl": sampler_kl, "ratio": _ratio},
    )
    lows = _raised(config.low_start, config.low_max, config.step)
    highs = _raised(config.high_start, config.high_max, config.step)
    prepare = bind(_with_bounds, lows=lows, highs=highs, target=config.target)
    return Algorithm(
        reads=("reward",),
        advantage=outcome_advantage(group_normalized_advantage),
        objectives=(_reporting_bounds(policy._replace(prepare=prepare)),),
        min_group_size=2,
    )


def _reporting_bounds(policy: Objective) -> Objective:
    metrics = with_coefficient(with_coefficient(policy.metrics, "ratio_low"), "ratio_high")
    return policy._replace(metrics=metrics)


def _bounded_surrogate(batch: TensorDict, *, ratio_cap: float) -> TokenFloat:
    """Compute `dual_clip_surrogate` with the bounds of the step."""
    ratio, advantage = _ratio(batch).clamp(max=ratio_cap), batch["advantage"]
    clipped = ratio.clamp(batch["ratio_low"].unsqueeze(-1), batch["ratio_high"].unsqueeze(-1))
    return torch.maximum(-advantage * ratio, -advantage * clipped)


def _with_bounds(batch: TensorDict, *, lows: tuple[float, ...], highs: tuple[float, ...], target: float) -> TensorDict:
    """Write the first pair of bounds that is balanced, the lower one raised first; the last one if none is."""
    ratio, advantage, mask = token_ratio(batch["old_logp"], batch["rollout_logp"]), batch["advantage"], batch["mask"]
    positive = {high: _sum(ratio.clamp(max=high) * advantage.clamp(min=0), mask) for high in highs}
    negative = {low: _sum(ratio.clamp(min=low) * (-advantage).clamp(min=0), mask) for low in lows}
    pairs = [(low, highs[0]) for low in lows] + [(lows[-1], high) for high in highs[1:]]
    chosen = tuple(torch.full_like(positive[highs[0]], bound) for bound in pairs[-1])
    for pair in reversed(pairs):
        is_balanced = positive[pair[1]] >= target * negative[pair[0]]
        chosen = tuple(torch.where(is_balanced, bound, other) for bound, other in zip(pair, chosen, strict=True))
    low, high = (bound.unsqueeze(-1).expand(mask.shape[:-1]) for bound in chosen)
    return with_fields(batch, ratio_low=low, ratio_high=high)


def _sum(x: TokenFloat, mask: TokenBool) -> Scalar:
    return masked(x, mask).sum((-2, -1))


def _raised(start: float, end: float, step: float) -> tuple[float, ...]:
    """The numbers from `start` to `end`, in steps of `step`, the last of which may be shorter."""
    count = math.ceil((end - start) / step - 1e-9)
    return (*(start + k * step for k in range(count)), end)
