"""The reverse linear recurrence over time. Returns, advantages and traces are computed with it.

    y_t = x_t + decay_t * y_{t+1},   y_T = 0

If x holds rewards, y holds discounted returns. A decay of 1 at a step means no discount at that step.

Contract: x is a finite floating tensor of shape [..., time]. `decay` is in [0, 1]. It is a number, which is rounded to
the dtype of x, or a tensor that broadcasts to x: [..., 1] for one decay per row, [..., time] for one per step. The
result has the shape, dtype and device of x. It is differentiable in x, and in `decay` if that is a tensor. There is no
division and no overflow. A decay of 0 returns x bit for bit. Rows do not affect each other.

    reference.py   one step at a time: the definition, which the tests compare with
    chunked.py     four steps of all chunks at a time, then a recurrence over the chunks
    fused.py       a Triton kernel, for CUDA tensors if triton is installed

>>> import torch
>>> reverse_recurrence(torch.tensor([0.0, 0.0, 8.0]), 0.5)
tensor([2., 4., 8.])
>>> reverse_recurrence(torch.tensor([0.0, 0.0, 8.0]), torch.tensor([0.5, 1.0, 0.5]))
tensor([4., 8., 8.])
"""

from __future__ import annotations

import torch

from purerl.kernels.accelerators import uses_triton
from purerl.kernels.recurrence import chunked

__all__ = ["reverse_recurrence"]


def reverse_recurrence(x: torch.Tensor, decay: float | torch.Tensor) -> torch.Tensor:
    """y_t = x_t + decay_t * y_{t+1} along the last axis. See `purerl.kernels.recurrence`."""
    if uses_triton(x):
        from purerl.kernels.recurrence import fused

        return fused.reverse_recurrence(x, decay)
    return chunked.reverse_recurrence(x, decay)
