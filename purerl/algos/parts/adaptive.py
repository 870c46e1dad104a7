"""Coefficients of a KL penalty or an entropy bonus that adapt from batch to batch.

A coefficient is the state of a transform. It is used for a batch, and then adapted to what was measured on this batch.
Measurements are of the policy at the start of the update, so all optimizer steps of a batch have the same coefficient.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from purerl.algos.algebra import Bound, Transform, Weighted, bind
from purerl.algos.parts.divergences import k1
from purerl.algos.parts.elementwise import clip
from purerl.batch import with_fields
from purerl.kernels.masks import any_true, count_true, masked
from purerl.types import Count, Scalar, TensorDict

__all__ = [
    "MAX_ERROR",
    "MIN_FACTOR",
    "MIN_RAISED",
    "adapt_entropy_coef",
    "adapt_kl_coef",
    "adaptive_coefficient",
    "adaptive_entropy_coefficient",
    "adaptive_kl_coefficient",
    "with_coefficient",
]

MAX_ERROR = 0.2
"""The bound of the relative error by which `adapt_kl_coef` changes the coefficient (1909.08593)."""

MIN_FACTOR = 0.5
"""The smallest factor by which `adapt_kl_coef` changes the coefficient."""

MIN_RAISED = 1e-6
"""The smallest coefficient after `adapt_kl_coef` has raised it."""


# --- equations ---------------------------------------------------------------------------------------------------


def adapt_kl_coef(coefficient: Scalar, divergence: Scalar, rows: Count, *, target: float, horizon: float) -> Scalar:
    """Compute the next coefficient of an adaptive KL penalty.

        c <- c * max(1/2, 1 + clip(divergence / target - 1, -0.2, 0.2) * rows / horizon)
        c <- max(c, 1e-6)    if divergence > target

    `divergence` and `target` are in nats, `horizon` is in rows. All tensors are scalars.
    Source: Ziegler et al. 2019 (1909.08593). The bounds 1/2 and 1e-6 are not in the paper, whose horizon is so long
    that the factor is always near 1. They keep the coefficient from staying 0: a factor would never change a 0, which a
    factor of 0, an underflow or the first coefficient can give.

    >>> adapt_kl_coef(torch.tensor(0.5), torch.tensor(9.0), torch.tensor(50), target=6.0, horizon=100.0)
    tensor(0.5500)
    """
    error = (divergence / target - 1).clamp(-MAX_ERROR, MAX_ERROR)
    adapted = coefficient * (1 + error * rows / horizon).clamp(min=MIN_FACTOR)
    return torch.where(divergence > target, adapted.clamp(min=MIN_RAISED), adapted)


def adapt_entropy_coef(
    coefficient: Scalar, entropy: Scalar, *, target: float, step_size: float, max_coef: float
) -> Scalar:
    """Compute the next coefficient of an adaptive entropy bonus.

        c <- clip(c + step_size * sign(target - entropy), 0, max_coef)

    `entropy` and `target` are in nats. All tensors are scalars. Source: adaptive entropy control in Skywork-OR1
    (2505.22312). The bound `max_coef` is in the authors' code.

    >>> adapt_entropy_coef(torch.tensor(0.25), torch.tensor(0.1), target=0.2, step_size=0.125, max_coef=1.0)
    tensor(0.3750)
    """
    return clip(coefficient + step_size * (target - entropy).sign(), 0, max_coef)


# --- transforms --------------------------------------------------------------------------------------------------


def adaptive_coefficient(
    field: str, first: float, adapt: Callable[[Scalar, TensorDict], tuple[Scalar, Scalar]]
) -> Transform:
    """Return a transform that writes the same coefficient to `field` of every row. Its state is the coefficient.

    adapt(state, batch) returns the next state, and the coefficient of this batch. `first` is the first state.
    """
    return Transform(bind(_first, value=first), bind(_write_coefficient, field=field, adapt=adapt))


def _first(*, value: float) -> Scalar:
    return torch.tensor(value, dtype=torch.float64)


def _write_coefficient(state: Scalar, batch: TensorDict, *, field: str, adapt: Callable) -> tuple[Scalar, TensorDict]:
    state, current = adapt(state, batch)
    return state, with_fields(batch, **{field: current.expand(batch["mask"].shape[:-1])})


def adaptive_kl_coefficient(field: str, *, coef: float, target: float, horizon: float) -> Transform:
    """Return `adaptive_coefficient` with `adapt_kl_coef`. The first coefficient is `coef`.

    The divergence is the mean over counted rows of the sum of k1 over their counted tokens. Without counted rows the
    coefficient does not change. `target` is in nats, `horizon` in rows. Reads `old_logp` and `ref_logp`.
    """
    return adaptive_coefficient(field, coef, bind(_adapt_to_kl, target=target, horizon=horizon))


def _adapt_to_kl(state: Scalar, batch: TensorDict, *, target: float, horizon: float) -> tuple[Scalar, Scalar]:
    mask, divergence = batch["mask"], k1(batch["old_logp"], batch["ref_logp"])
    rows = count_true(any_true(mask))
    mean = masked(divergence, mask).sum((-2, -1)) / rows.clamp(min=1)
    return adapt_kl_coef(state, mean, rows, target=target, horizon=horizon), state.to(divergence.dtype)


def adaptive_entropy_coefficient(
    field: str, *, coef: float, target: float, step_size: float, max_coef: float
) -> Transform:
    """Return `adaptive_coefficient` with `adapt_entropy_coef`. The first coefficient is `coef`.

    The coefficient of a batch is 0 if the mean entropy of its counted tokens is above `target`, nats. Without counted
    tokens the state does not change. Reads `old_entropy`.
    """
    return adaptive_coefficient(
        field, coef, bind(_adapt_to_entropy, target=target, step_size=step_size, max_coef=max_coef)
    )


def _adapt_to_entropy(
    state: Scalar, batch: TensorDict, *, target: float, step_size: float, max_coef: float
) -> tuple[Scalar, Scalar]:
    mask, entropy = batch["mask"], batch["old_entropy"]
    tokens = count_true(mask).sum(-1)
    mean = masked(entropy, mask).sum((-2, -1)) / tokens.clamp(min=1)
    adapted = adapt_entropy_coef(state, mean, target=target, step_size=step_size, max_coef=max_coef)
    return torch.where(tokens > 0, adapted, state), torch.where(mean <= target, state, 0).to(entropy.dtype)


def with_coefficient(metrics: Callable, field: str) -> Bound:
    """Return `metrics` and one more: the mean of the coefficient `field` over counted rows."""
    return bind(_with_coefficient, metrics=metrics, field=field)


def _with_coefficient(batch: TensorDict, *, metrics: Callable, field: str) -> dict[str, Weighted]:
    counted = any_true(batch["mask"])
    mean = Weighted(masked(batch[field], counted).sum(-1), count_true(counted))
    return {**metrics(batch), field: mean}
