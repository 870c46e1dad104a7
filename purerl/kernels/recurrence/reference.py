"""The reverse recurrence as it is defined: one step after the other."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["reverse_recurrence"]


def reverse_recurrence(x: Tensor, decay: float | Tensor) -> Tensor:
    """y_t = x_t + decay_t * y_{t+1} along the last axis; see the contract in `purerl.kernels.recurrence`."""
    decays = (torch.zeros_like(x) + decay).split(1, -1)
    y, steps = torch.zeros_like(x[..., :1]), []
    for step, decay_t in zip(reversed(x.split(1, -1)), reversed(decays), strict=True):
        y = step + decay_t * y
        steps.append(y)
    return torch.cat(steps[::-1], -1)
