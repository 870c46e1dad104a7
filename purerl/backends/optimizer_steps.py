"""Optimizer steps that are skipped, and the metrics that a trainer adds to those of the objective."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from purerl.algos.algebra import Counts, Weighted

__all__ = ["SKIP_REASONS", "skip_reason", "step_metrics"]

SKIP_REASONS = ("nonfinite_gradient", "no_tokens", "zero_gradient")
"""Reasons for which a step is skipped. Each has a metric ``skipped/REASON``, and ``skipped`` is their sum."""


def skip_reason(norm: float, counts: Mapping[str, Counts], *, skip_zero_gradients: bool) -> str | None:
    """The reason for which an optimizer step is skipped, one of `SKIP_REASONS`; None if it is taken.

    norm     of the gradient over all ranks, before clipping: it is the same on every rank, and so is the result
    counts   of the whole step

    A gradient of 0 has no direction, but the momentum of AdamW would still move the weights, and weight decay would.

    >>> one = {"policy": Counts(torch.tensor(3), torch.tensor(1))}
    >>> [skip_reason(norm, one, skip_zero_gradients=True) for norm in (0.5, 0.0, math.nan)]
    [None, 'zero_gradient', 'nonfinite_gradient']
    """
    if not math.isfinite(norm):
        return "nonfinite_gradient"
    if not sum(int(count.tokens) for count in counts.values()):
        return "no_tokens"
    return "zero_gradient" if norm == 0 and skip_zero_gradients else None


def step_metrics(
    norm: float, reason: str | None, *, learning_rate: float, update_lost: float | None = None
) -> dict[str, Weighted]:
    """The trainer's own metrics of a step that was skipped for `reason`, or taken if it is None.

    learning_rate            of the step, also if it was skipped: the schedule advances
    skipped, skipped/REASON  1 if it was skipped (for this reason), otherwise 0
    zero_gradient_fraction   1 if the gradient was 0, otherwise 0, also for a step that was taken
    grad_norm                `norm`; left out if it is not finite, or if no token was counted
    update_lost              the share of the update that rounding of weights removed; left out if it is None
    """
    extra = {"learning_rate": learning_rate, "zero_gradient_fraction": float(norm == 0)}
    extra |= {"skipped": float(reason is not None)}
    extra |= {f"skipped/{name}": float(name == reason) for name in SKIP_REASONS}
    extra |= {"grad_norm": norm} if reason in (None, "zero_gradient") else {}
    extra |= {} if update_lost is None else {"update_lost": update_lost}
    weight = torch.ones((), dtype=torch.float64)
    return {name: Weighted(value * weight, weight) for name, value in extra.items()}
