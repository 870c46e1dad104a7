"""The reverse recurrence by a Triton kernel, for accelerators: one program for each row, one pass over memory.

Step t is the map y -> x_t + decay_t * y. Maps are composed by an associative scan over a block of steps, and the last
value of a block enters the next. The gradient with respect to x obeys the same recurrence in the direction of time:

    dx_t     = dy_t + decay_{t-1} * dx_{t-1}
    ddecay_t = dx_t * y_{t+1}

and the gradient of that one is the reverse recurrence again, so derivatives of every order exist. Everything is
computed in float64: in float32 the products of a scan would be rounded in the same direction at every step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["reverse_recurrence"]

_MAX_BLOCK = 2048


def reverse_recurrence(x: Tensor, decay: float | Tensor, *, block: int | None = None) -> Tensor:
    """y_t = x_t + decay_t * y_{t+1} along the last axis, `block` steps at a time. See `purerl.kernels.recurrence`."""
    decay = decay if isinstance(decay, Tensor) else torch.full_like(x[..., :1], decay)
    block = block or min(_MAX_BLOCK, 1 << max(x.shape[-1] - 1, 0).bit_length())
    return _Recurrence.apply(x, decay.expand(x.shape), -1, block)


class _Recurrence(torch.autograd.Function):
    """The recurrence in reverse (direction -1), or in the direction of time with the decay of the step before (1)."""

    @staticmethod
    def forward(x: Tensor, decay: Tensor, direction: int, block: int) -> Tensor:
        from purerl.kernels.recurrence import triton_kernels

        time = x.shape[-1]
        x, decay = x.contiguous(), decay.contiguous()
        y = torch.empty_like(x)
        if not x.numel():
            return y
        first, shift = (time - 1, 0) if direction < 0 else (0, -1)
        triton_kernels.recurrence[(x.numel() // time,)](x, decay, y, time, first, direction, shift, block)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, decay, ctx.direction, ctx.block = inputs
        ctx.save_for_backward(decay, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        decay, y = ctx.saved_tensors
        grad_x = _Recurrence.apply(grad, decay, -ctx.direction, ctx.block)
        if not ctx.needs_input_grad[1]:
            return grad_x, None, None, None
        # The value that decay_t multiplies, and the gradient of the value that it enters.
        entering, target = (_next(y), grad_x) if ctx.direction < 0 else (y, _next(grad_x))
        return grad_x, target * entering, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, decay: Tensor, direction: int, block: int) -> Any:
        x, decay = (
            tensor.expand(info.batch_size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
            for tensor, axis in zip((x, decay), in_dims, strict=False)
        )
        return _Recurrence.apply(x, decay, direction, block), 0


def _next(x: Tensor) -> Tensor:
    """x_{t+1}, and 0 at the last step."""
    return pad(x[..., 1:], (0, 1))
