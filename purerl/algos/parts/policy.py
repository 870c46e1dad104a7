"""The objective of a policy: a surrogate, and a reduction of it.

    loss = reduce(surrogate)

Modifiers add other terms: `kl_loss` a KL divergence from the reference, `entropy_bonus` an entropy bonus.

Metrics, each a mean over counted tokens:

    approx_kl          k3 of old_logp and logp, nats: an estimate of KL(old policy || current policy)
    sampler_kl         k3 of rollout_logp and logp, nats, if the surrogate uses the ratio to the rollout policy
    ratio              the ratio of the surrogate; 1 if the policy has not changed
    weight             the weight of the policy gradient, in algorithms with a weight instead of a ratio
    clip_fraction      the fraction of tokens that are clipped; clip_fraction_low and clip_fraction_high are its parts:
                       ratios below the clip range at negative advantages, and above it at positive ones
    dropped_fraction   the fraction of tokens that the algorithm drops from the policy loss
    entropy            the entropy of the next-token distribution, nats
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from purerl.algos.algebra import Bound, Objective, Term, Weighted, bind, of_fields, read_field, unchanged, write_field
from purerl.algos.parts.divergences import k3
from purerl.algos.parts.metrics import token_means
from purerl.algos.parts.regressions import advantage_regression
from purerl.algos.parts.rows import broadcast_to_tokens, row_mean
from purerl.algos.parts.surrogates import (
    clip_high_indicator,
    clip_indicator,
    clip_low_indicator,
    clip_surrogate,
    policy_gradient,
    sequence_log_ratio,
    sequence_ratio,
    token_ratio,
)
from purerl.kernels.masks import count_true
from purerl.types import TensorDict, TokenBool, TokenFloat

__all__ = [
    "add_preparation",
    "approx_kl",
    "clip_metrics",
    "clip_surrogate_of",
    "clipped_policy",
    "drop_tokens",
    "policy_objective",
    "reference_regression_of",
    "sampler_kl",
    "sequence_level_ratio",
    "token_level_ratio",
    "weighted_policy",
]

token_level_ratio = of_fields(token_ratio, "logp", "old_logp")
"""A function of a batch: the ratio of each token, as in PPO."""

sequence_level_ratio = of_fields(sequence_ratio, "logp", "old_logp", "mask")
"""A function of a batch: the ratio of each sequence, as in GSPO."""

approx_kl = of_fields(k3, "old_logp", "logp")
"""A function of a batch: the estimate k3 of KL(old policy || current policy), nats."""

sampler_kl = of_fields(k3, "rollout_logp", "logp")
"""A function of a batch: the estimate k3 of KL(rollout policy || current policy), nats."""

_KL_METRICS = {"old_logp": ("approx_kl", approx_kl), "rollout_logp": ("sampler_kl", sampler_kl)}


def policy_objective(
    surrogate: Callable[[TensorDict], TokenFloat],
    reduce: Callable,
    *,
    reads: tuple[str, ...],
    metrics: Mapping[str, Callable[[TensorDict], TokenFloat]],
) -> Objective:
    """Return the objective of a policy with any surrogate. `reads` and `metrics` are those of the surrogate."""
    return Objective(
        role="policy",
        reads=reads,
        outputs=("logp",),
        metric_outputs=("entropy",),
        terms=(Term("policy", surrogate, reduce),),
        metrics=token_means(**metrics, entropy=read_field("entropy")),
    )


def clipped_policy(
    ratio: Callable[[TensorDict], TokenFloat], reduce: Callable, *, clip_low: float, clip_high: float
) -> Objective:
    """Return the objective of a policy with `clip_surrogate` of any ratio.

    `ratio` is a function of a batch, for example `token_level_ratio` (PPO) or `sequence_level_ratio` (GSPO).
    """
    keywords = {"ratio": ratio, "clip_low": clip_low, "clip_high": clip_high}
    return policy_objective(
        bind(clip_surrogate_of, **keywords),
        reduce,
        reads=("old_logp", "advantage"),
        metrics={"approx_kl": approx_kl, "ratio": ratio, **clip_metrics(**keywords)},
    )


def clip_surrogate_of(batch: TensorDict, *, ratio: Callable, clip_low: float, clip_high: float) -> TokenFloat:
    """Compute `clip_surrogate` of the ratios ratio(batch) and the advantages of `batch`. The result is [rows, time]."""
    return clip_surrogate(ratio(batch), batch["advantage"], clip_low=clip_low, clip_high=clip_high)


def reference_regression_of(batch: TensorDict, *, beta: float) -> TokenFloat:
    """Compute `advantage_regression` of the log-ratios of rows to the reference model. The result is [rows, time].

    Every counted token has the value of its row.
    """
    mask = batch["mask"]
    log_ratio = sequence_log_ratio(batch["logp"], batch["ref_logp"], mask)
    return broadcast_to_tokens(advantage_regression(log_ratio, row_mean(batch["advantage"], mask), beta=beta), mask)


def clip_metrics(
    *, ratio: Callable[[TensorDict], TokenFloat], clip_low: float, clip_high: float
) -> dict[str, Callable[[TensorDict], TokenFloat]]:
    """Return the metrics of `clip_surrogate_of` by name: the tokens that are clipped, from below, and from above."""
    return {
        "clip_fraction": _on_ratio(clip_indicator, ratio, clip_low=clip_low, clip_high=clip_high),
        "clip_fraction_low": _on_ratio(clip_low_indicator, ratio, clip_low=clip_low),
        "clip_fraction_high": _on_ratio(clip_high_indicator, ratio, clip_high=clip_high),
    }


def _on_ratio(indicator: Callable, ratio: Callable, **bounds: float) -> Bound:
    return bind(_indicator_of, indicator=bind(indicator, **bounds), ratio=ratio)


def _indicator_of(batch: TensorDict, *, indicator: Callable, ratio: Callable) -> TokenFloat:
    return indicator(ratio(batch), batch["advantage"])


def weighted_policy(weight: Callable[[TensorDict], TokenFloat], reduce: Callable, *, behavior: str) -> Objective:
    """Return the objective of a policy with a weighted policy gradient.

        l = -sg(w) A logp

    `behavior` is the field that the weight compares `logp` with: `old_logp` or `rollout_logp`.
    """
    return policy_objective(
        bind(_weighted_policy_gradient, weight=weight),
        reduce,
        reads=(behavior, "advantage"),
        metrics=dict([_KL_METRICS[behavior], ("weight", weight)]),
    )


def _weighted_policy_gradient(batch: TensorDict, *, weight: Callable) -> TokenFloat:
    return policy_gradient(batch["logp"], weight(batch).detach() * batch["advantage"])


def drop_tokens(policy: Objective, choice: Callable[[TensorDict], TokenBool], *reads: str) -> Objective:
    """Return `policy` with a policy loss of 0 at the tokens of choice(batch), bool [rows, time].

    The choice is made once, over the whole optimizer step. Dropped tokens stay in the denominators and in the other
    terms. `reads` are the fields that `choice` reads, besides those of `policy`. The `prepare` of `policy` runs first.
    """
    first, *other_terms = policy.terms
    policy = add_preparation(policy, write_field("dropped", choice))
    return policy._replace(
        reads=tuple(dict.fromkeys((*policy.reads, *reads, "dropped"))),
        terms=(first._replace(loss=bind(_zero_dropped, loss=first.loss)), *other_terms),
        metrics=bind(_with_dropped_fraction, metrics=policy.metrics),
    )


def add_preparation(objective: Objective, function: Callable[[TensorDict], TensorDict]) -> Objective:
    """Return `objective` with `function` after its `prepare`."""
    first = objective.prepare
    return objective._replace(
        prepare=function if first is unchanged else bind(_in_sequence, first=first, second=function)
    )


def _in_sequence(batch: TensorDict, *, first: Callable, second: Callable) -> TensorDict:
    return second(first(batch))


def _zero_dropped(batch: TensorDict, *, loss: Callable) -> TokenFloat:
    return torch.where(batch["dropped"], 0, loss(batch))


def _with_dropped_fraction(batch: TensorDict, *, metrics: Callable) -> dict[str, Weighted]:
    mask = batch["mask"]
    return {
        **metrics(batch),
        "dropped_fraction": Weighted(count_true(mask & batch["dropped"]).sum(-1), count_true(mask).sum(-1)),
    }
