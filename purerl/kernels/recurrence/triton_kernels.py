"""The Triton kernel of `purerl.kernels.recurrence.fused`. Import this module in a function: it needs triton."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["recurrence"]


@triton.jit
def _compose(decay, y, next_decay, next_y):
    """The map v -> next_y + next_decay * (y + decay * v)."""
    return decay * next_decay, next_y + next_decay * y


@triton.jit
def recurrence(x, decay, y, time, first, step, shift, BLOCK: tl.constexpr):
    """y_s = x_s + decay_s * y_{s-1} over the steps s of one row, where step s is at time t = first + s * step.

    decay_s is the decay at time t + shift; outside of the row it is 0.
    """
    row = tl.program_id(0).to(tl.int64) * time
    carry = tl.zeros((1,), tl.float64)
    for start in range(0, time, BLOCK):
        steps = start + tl.arange(0, BLOCK)
        t = first + steps * step
        in_row = steps < time
        x_block = tl.load(x + row + t, mask=in_row, other=0).to(tl.float64)
        decay_t = t + shift
        in_decay = in_row & (decay_t >= 0) & (decay_t < time)
        decay_block = tl.load(decay + row + decay_t, mask=in_decay, other=0).to(tl.float64)
        decays, sums = tl.associative_scan((decay_block, x_block), 0, _compose)
        result = sums + decays * carry
        tl.store(y + row + t, result.to(y.dtype.element_ty), mask=in_row)
        carry = tl.sum(tl.where(steps == start + BLOCK - 1, result, 0), 0, keep_dims=True)
