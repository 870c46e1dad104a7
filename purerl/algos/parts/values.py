"""The objective of a critic."""

from __future__ import annotations

import torch

from purerl.algos.algebra import Objective, Term, of_fields
from purerl.algos.parts.metrics import token_means
from purerl.algos.parts.reductions import token_mean
from purerl.types import TokenFloat

__all__ = ["clipped_value_loss", "critic_objective", "squared_error"]


def squared_error(value: TokenFloat, returns: TokenFloat) -> TokenFloat:
    """(V - R)^2."""
    return (value - returns).square()


def clipped_value_loss(
    value: TokenFloat, old_value: TokenFloat, returns: TokenFloat, *, value_clip: float
) -> TokenFloat:
    """1/2 max((V - R)^2, (V_clip - R)^2), with V_clip = V_old + clip(V - V_old, -value_clip, value_clip).

    There is no gradient once the estimate has moved by more than `value_clip` toward its target. With `value_clip`
    infinite it is half the squared error. Source: the authors' code of PPO (the paper does not have it).

    >>> clipped_value_loss(torch.tensor([[1.0]]), torch.tensor([[0.0]]), torch.tensor([[2.0]]), value_clip=0.5)
    tensor([[1.1250]])
    """
    near = old_value + (value - old_value).clamp(-value_clip, value_clip)
    return torch.maximum(squared_error(value, returns), squared_error(near, returns)) / 2


def critic_objective(*, value_clip: float) -> Objective:
    """The token mean of `clipped_value_loss`. Metric: `value_error`, the mean squared error."""
    loss = of_fields(clipped_value_loss, "value", "old_value", "returns", value_clip=value_clip)
    return Objective(
        role="critic",
        reads=("old_value", "returns"),
        outputs=("value",),
        terms=(Term("value", loss, token_mean),),
        metrics=token_means(value_error=of_fields(squared_error, "value", "returns")),
    )
