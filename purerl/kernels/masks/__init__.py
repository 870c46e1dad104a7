"""Reductions of a mask over time. They read the mask as bytes, because torch reduces bool tensors slowly on a CPU.

Contract: `mask` is bool, of shape [..., time]. The functions have no gradient and do not synchronize with an
accelerator. Each equals the torch expression in the first line of its docstring. The tests use that as the reference.

>>> import torch
>>> mask = torch.tensor([[False, True, True], [False, False, False]])
>>> any_true(mask), count_true(mask), first_true(mask)
(tensor([ True, False]), tensor([2, 0]), tensor([1, 0]))
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["any_true", "as_bytes", "count_true", "first_true"]

_IS_VIEW_BATCHED = torch.__version__ >= "2.13"
"""Whether `torch.func.vmap` knows views of another dtype. torch 2.11 does not; 2.12 was not tried."""


def as_bytes(mask: Tensor) -> Tensor:
    """``mask.to(torch.uint8)``, without a copy if torch allows it: 1 where True, 0 elsewhere. Same shape."""
    return mask.view(torch.uint8) if _IS_VIEW_BATCHED else mask.to(torch.uint8)


def any_true(mask: Tensor) -> Tensor:
    """``mask.any(-1)``: whether any step of a row is True. [..., time] -> [...], bool."""
    return as_bytes(mask).amax(-1) > 0 if mask.shape[-1] else mask.any(-1)


def count_true(mask: Tensor) -> Tensor:
    """``mask.sum(-1)``: the number of True steps of a row. [..., time] -> [...], int64."""
    return as_bytes(mask).sum(-1, dtype=torch.int32).long()


def first_true(mask: Tensor) -> Tensor:
    """``mask.max(-1).indices``: the index of the first True step of a row, or 0. [..., time] -> [...], int64.

    Steps are numbered from the end, from 1 to time. The maximum over the True steps is then the first of them.

    Raises: IndexError if time is 0, as torch does.
    """
    time = mask.shape[-1]
    dtype = torch.int16 if time < 2**15 else torch.int64
    steps_to_end = torch.arange(time, 0, -1, dtype=dtype, device=mask.device)
    return (time - (steps_to_end * as_bytes(mask)).amax(-1).long()) % time
