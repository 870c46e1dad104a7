"""The definition of the reverse recurrence: one step at a time."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["reverse_recurrence"]


def reverse_recurrence(x: Tensor, decay: float | Tensor) -> Tensor:
    """y_t = x_t + decay_t * y_{t+1} along the last axis. See `purerl.kernels.recurrence`."""
    decays = (torch.zeros_like(x) + decay).split(1, -1)
    y, results = torch.zeros_like(x[..., :1]), []
    for x_t, decay_t in zip(reversed(x.split(1, -1)), reversed(decays), strict=True):
        y = x_t + decay_t * y
        results.append(y)
    return torch.cat(results[::-1], -1)
