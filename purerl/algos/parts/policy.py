"""The objective of a policy: a surrogate, perhaps a divergence from the reference, perhaps an entropy bonus.

    loss = reduce(surrogate) + kl_loss_coef * reduce(k3(logp, ref_logp)) - entropy_coef * reduce(entropy)

All terms are reduced in the same way, so that a coefficient means the same whatever the reduction. A term whose
coefficient is 0 is not there, and nothing is read for it.

Metrics, each a mean over counted tokens:

    kl              how far the policy has moved since the update began: k3, an estimate of KL(old || now), nats
    kl_sampler      the same from the sampler: k3, an estimate of KL(sampler || now), where the surrogate starts there
    ratio           the mean of the surrogate's ratio; 1 when nothing has moved
    weight          the mean weight, where a weight of its own, or one from the sampler, takes the place of the ratio
    clip_fraction   the share of tokens that are clipped
    dropped         the share of tokens that are left out by choice
    entropy         of the policy's next-token distribution, nats
    kl_reference    k3 of the policy from the reference, nats; where the reference is read
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from tensordict import TensorDict

from purerl.algos.algebra import Objective, Term, Weighted, bind, of_fields, read, writes
from purerl.algos.parts.divergences import k3
from purerl.algos.parts.metrics import token_means
from purerl.algos.parts.settings import optional
from purerl.algos.parts.surrogates import clip_surrogate, clipped, policy_gradient, sequence_ratio, token_ratio
from purerl.kernels.masks import count_true
from purerl.types import TokenBool, TokenFloat

__all__ = [
    "clipped_policy",
    "dropping",
    "from_sampler",
    "moved",
    "per_sequence",
    "per_token",
    "policy_objective",
    "weighted_policy",
]

per_token = of_fields(token_ratio, "logp", "old_logp")
"""PPO's ratio, of a batch."""

per_sequence = of_fields(sequence_ratio, "logp", "old_logp", "mask")
"""GSPO's ratio, of a batch."""

moved = of_fields(k3, "old_logp", "logp")
"""How far the policy has moved since the update began, of a batch."""

from_sampler = of_fields(k3, "rollout_logp", "logp")
"""How far the policy is from the sampler, of a batch."""

_DISTANCES = {"old_logp": ("approx_kl", moved), "rollout_logp": ("sampler_kl", from_sampler)}


def policy_objective(
    surrogate: Callable[[TensorDict], TokenFloat],
    reduce: Callable,
    *,
    reads: tuple[str, ...],
    metrics: Mapping[str, Callable[[TensorDict], TokenFloat]],
    kl_loss_coef: float,
    entropy_coef: float,
) -> Objective:
    """The objective of a policy with any surrogate; `reads` and `metrics` are the surrogate's own."""
    kl, entropy = of_fields(k3, "logp", "ref_logp"), read("entropy")
    return Objective(
        role="policy",
        reads=(*reads, *optional(kl_loss_coef, "ref_logp")),
        outputs=("logp", *optional(entropy_coef, "entropy")),
        watches=() if entropy_coef else ("entropy",),
        terms=(
            Term("policy", surrogate, reduce),
            *optional(kl_loss_coef, Term("ref_kl", kl, reduce, weight=kl_loss_coef)),
            *optional(entropy_coef, Term("entropy", entropy, reduce, weight=-entropy_coef)),
        ),
        metrics=token_means(**metrics, entropy=entropy, **dict(optional(kl_loss_coef, ("ref_kl", kl)))),
    )


def clipped_policy(
    ratio: Callable[[TensorDict], TokenFloat],
    reduce: Callable,
    *,
    clip_low: float,
    clip_high: float,
    kl_loss_coef: float,
    entropy_coef: float,
) -> Objective:
    """The objective of a policy with the clipped surrogate of any kind of ratio."""
    keywords = {"ratio": ratio, "clip_low": clip_low, "clip_high": clip_high}
    return policy_objective(
        bind(_clip_surrogate, **keywords),
        reduce,
        reads=("old_logp", "advantage"),
        metrics={"approx_kl": moved, "ratio": ratio, "clip_fraction": bind(_clipped, **keywords)},
        kl_loss_coef=kl_loss_coef,
        entropy_coef=entropy_coef,
    )


def _clip_surrogate(batch: TensorDict, *, ratio: Callable, clip_low: float, clip_high: float) -> TokenFloat:
    return clip_surrogate(ratio(batch), batch["advantage"], clip_low=clip_low, clip_high=clip_high)


def _clipped(batch: TensorDict, *, ratio: Callable, clip_low: float, clip_high: float) -> TokenFloat:
    return clipped(ratio(batch), batch["advantage"], clip_low=clip_low, clip_high=clip_high)


def weighted_policy(
    weight: Callable[[TensorDict], TokenFloat],
    reduce: Callable,
    *,
    behavior: str,
    kl_loss_coef: float,
    entropy_coef: float,
) -> Objective:
    """The objective of a policy with a weighted policy gradient, -sg(w) A logp.

    `behavior` is the field from which the weight measures the policy: `old_logp` or `rollout_logp`.
    """
    return policy_objective(
        bind(_weighted, weight=weight),
        reduce,
        reads=(behavior, "advantage"),
        metrics=dict([_DISTANCES[behavior], ("weight", weight)]),
        kl_loss_coef=kl_loss_coef,
        entropy_coef=entropy_coef,
    )


def _weighted(batch: TensorDict, *, weight: Callable) -> TokenFloat:
    return policy_gradient(batch["logp"], weight(batch).detach() * batch["advantage"])


def dropping(policy: Objective, choice: Callable[[TensorDict], TokenBool], *reads: str) -> Objective:
    """`policy` without a policy loss at the tokens of choice(batch), which is taken over the whole optimizer step.

    They keep their place in denominators, and in the other terms. `reads` is what the choice reads beside `policy`.
    """
    first, *others = policy.terms
    return policy._replace(
        reads=(*policy.reads, *reads, "dropped"),
        terms=(first._replace(loss=bind(_left, loss=first.loss)), *others),
        prepare=writes("dropped", choice),
        metrics=bind(_and_dropped, metrics=policy.metrics),
    )


def _left(batch: TensorDict, *, loss: Callable) -> TokenFloat:
    return torch.where(batch["dropped"], 0, loss(batch))


def _and_dropped(batch: TensorDict, *, metrics: Callable) -> dict[str, Weighted]:
    mask = batch["mask"]
    return {
        **metrics(batch),
        "dropped_fraction": Weighted(count_true(mask & batch["dropped"]).sum(-1), count_true(mask).sum(-1)),
    }
