"""What a mask over time says about each row, asked of its bytes: on a CPU torch goes through bools one by one.

Contract. `mask` is bool, [..., time]. Nothing is differentiable, nothing waits for an accelerator, and each function
equals what torch gives for bools, which its first line names: that is the reference of the tests.

>>> import torch
>>> mask = torch.tensor([[False, True, True], [False, False, False]])
>>> any_true(mask), count_true(mask), first_true(mask)
(tensor([ True, False]), tensor([2, 0]), tensor([1, 0]))
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["any_true", "count_true", "first_true"]


def any_true(mask: Tensor) -> Tensor:
    """``mask.any(-1)``: [..., time] -> [...], bool."""
    return mask.view(torch.uint8).amax(-1) > 0 if mask.shape[-1] else mask.any(-1)


def count_true(mask: Tensor) -> Tensor:
    """``mask.sum(-1)``: [..., time] -> [...], int64."""
    return mask.view(torch.uint8).sum(-1, dtype=torch.int32).long()


def first_true(mask: Tensor) -> Tensor:
    """``mask.max(-1).indices``, where the first true place is; 0 where there is none: [..., time] -> [...], int64.

    Places are numbered from the end, and the highest number wins. Raises IndexError for a time of 0, as torch does.
    """
    time = mask.shape[-1]
    narrow = torch.int16 if time < 2**15 else torch.int64
    number = torch.arange(time, 0, -1, dtype=narrow, device=mask.device)
    return (time - (number * mask.view(torch.uint8)).amax(-1).long()) % time
