"""The reverse recurrence by chunks: a few steps of all chunks at a time.

Time is split into chunks of C = 4 steps. Within a chunk the recurrence runs step by step, for all chunks in parallel.
The value that enters from the next chunk is multiplied by the decays of the steps in between:

    local_t = x_t + decay_t * local_{t+1}
    power_t = decay_t * power_{t+1}
    y_t     = local_t + power_t * y_next

y_next is the first y of the next chunk. Beyond the end of a chunk, local is 0 and power is 1. The first y of all chunks
obey the same recurrence, with the first power of each chunk as decay, over a time that is C times shorter. The function
therefore calls itself: six levels cover 4,096 steps. Every power is at most 1, so nothing overflows.
"""

from __future__ import annotations

import torch

__all__ = ["CHUNK", "reverse_recurrence"]

CHUNK = 4
"""Steps per chunk. The fastest of 3, 4, 8 and 16 at shapes [64, 1024], [512, 4096] and [256, 16384] on a CPU."""


def reverse_recurrence(x: torch.Tensor, decay: float | torch.Tensor) -> torch.Tensor:
    """y_t = x_t + decay_t * y_{t+1} along the last axis. See `purerl.kernels.recurrence`."""
    decay = decay if isinstance(decay, torch.Tensor) else torch.full_like(x[..., :1], decay)
    return _recurrence(x, decay.expand(x.shape))


def _recurrence(x: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    time = x.shape[-1]
    if time <= 1:
        return x
    (*steps, local), (*decays, power) = _split_steps(x), _split_steps(decay)
    chunk = [(local, power)]
    for x_t, decay_t in zip(reversed(steps), reversed(decays), strict=True):
        local, power = torch.addcmul(x_t, decay_t, local), decay_t * power
        chunk.append((local, power))
    y_next = torch.nn.functional.pad(_recurrence(local, power)[..., 1:], (0, 1))
    y = torch.empty_like(local.unsqueeze(-1).expand(*local.shape, CHUNK), memory_format=torch.contiguous_format)
    for step, (local, power) in enumerate(reversed(chunk)):
        y[..., step] = torch.addcmul(local, power, y_next)
    return y.flatten(-2)[..., :time]


def _split_steps(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """CHUNK tensors of shape [..., chunks]. Tensor i holds step i of every chunk. The last chunk is padded with 0."""
    padding = -x.shape[-1] % CHUNK
    return (torch.nn.functional.pad(x, (0, padding)) if padding else x).unflatten(-1, (-1, CHUNK)).unbind(-1)
