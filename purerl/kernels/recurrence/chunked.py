"""The reverse recurrence by chunks: matrix products instead of steps.

Time is cut into chunks of C steps. Within a chunk the recurrence is a product with a triangular matrix of powers, and
what comes in from later chunks is the first value of the next one, decayed:

    local_t = sum_{s >= t, same chunk} decay^(s-t) x_s
    y_t     = local_t + decay^(C-t) * first(next chunk)                 t counted from 0 within the chunk

The first values obey the same recurrence with decay^C, over a time that is C times shorter; so the function calls
itself: two levels cover 1,024 steps, three 32,768. Every power is at most 1, so nothing overflows.

The products are ordinary ones: on a GPU, `torch.set_float32_matmul_precision` decides whether they are exact.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["CHUNK", "reverse_recurrence"]

CHUNK = 32
"""The fastest of 16, 32, 64 and 128 where it was measured, at [64, 1024], [512, 4096] and [256, 16384] on a CPU."""


def reverse_recurrence(x: Tensor, decay: float | Tensor) -> Tensor:
    """y_t = x_t + decay * y_{t+1} along the last axis; see the contract in `purerl.kernels.recurrence`."""
    time = x.shape[-1]
    if time <= CHUNK:
        return _within(x.unsqueeze(-2), decay).squeeze(-2)
    local = _within(pad(x, (0, -time % CHUNK)).unflatten(-1, (-1, CHUNK)), decay)
    first = reverse_recurrence(local[..., 0], decay**CHUNK)
    following = pad(first[..., 1:], (0, 1)).unsqueeze(-1)
    remaining = torch.arange(CHUNK, 0, -1, dtype=x.dtype, device=x.device)
    return torch.addcmul(local, following, _power(decay, remaining)).flatten(-2)[..., :time]


def _within(chunks: Tensor, decay: float | Tensor) -> Tensor:
    """local_t of each chunk [..., chunks, steps]."""
    step = torch.arange(chunks.shape[-1], dtype=chunks.dtype, device=chunks.device)
    distance = step[:, None] - step
    return chunks @ torch.where(distance >= 0, _power(decay, distance.clamp(min=0)), 0)


def _power(decay: float | Tensor, exponent: Tensor) -> Tensor:
    """decay^exponent, with axes for the rows of `decay` before those of `exponent`. 0^0 is 1."""
    return (decay.unsqueeze(-1) if isinstance(decay, Tensor) else decay) ** exponent
