"""Losses and the objective of a critic."""

from __future__ import annotations

import torch

from purerl.algos.algebra import Objective, Term, of_fields
from purerl.algos.parts.metrics import token_means
from purerl.algos.parts.reductions import token_mean
from purerl.types import TokenFloat

__all__ = ["clipped_value_loss", "critic_objective", "squared_error"]


def squared_error(value: TokenFloat, returns: TokenFloat) -> TokenFloat:
    """Compute the squared error (V - R)^2 of a critic.

    Shapes: [rows, time] each, in units of reward; the result is in reward^2.
    """
    return (value - returns).square()


def clipped_value_loss(
    value: TokenFloat, old_value: TokenFloat, returns: TokenFloat, *, value_clip: float
) -> TokenFloat:
    """Compute the clipped value loss of PPO.

        V_clip = V_old + clip(V - V_old, -value_clip, value_clip)
        l      = 1/2 max((V - R)^2, (V_clip - R)^2)

    The gradient is 0 if the value has already changed by more than `value_clip` toward its target. With an infinite
    `value_clip` it is half the squared error. Shapes: [rows, time] each, in units of reward.
    Source: the authors' code of PPO (it is not in the paper).

    >>> clipped_value_loss(torch.tensor([[1.0]]), torch.tensor([[0.0]]), torch.tensor([[2.0]]), value_clip=0.5)
    tensor([[1.1250]])
    """
    clipped = old_value + (value - old_value).clamp(-value_clip, value_clip)
    return torch.maximum(squared_error(value, returns), squared_error(clipped, returns)) / 2


def critic_objective(*, value_clip: float) -> Objective:
    """Return the objective of a critic: the token mean of `clipped_value_loss`.

    Metric: `value_error`, the mean squared error, reward^2.
    """
    loss = of_fields(clipped_value_loss, "value", "old_value", "returns", value_clip=value_clip)
    return Objective(
        role="critic",
        reads=("old_value", "returns"),
        outputs=("value",),
        terms=(Term("value", loss, token_mean),),
        metrics=token_means(value_error=of_fields(squared_error, "value", "returns")),
    )
