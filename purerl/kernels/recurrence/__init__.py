"""The reverse recurrence, the one loop over time that reinforcement learning needs.

    y_t = x_t + decay * y_{t+1},   y_T = 0        equivalently   y_t = sum_{s >= t} decay^(s-t) x_s

With rewards as x it gives discounted returns; with temporal differences, generalised advantages.

Contract. x is [..., time], of a floating dtype, and finite. `decay` lies in [0, 1]; it is a number, or a tensor
[..., 1] that gives each row its own. The result has the shape, dtype and device of x, and is differentiable in x and in
a `decay` that is a tensor. Nothing overflows. A decay of 0 gives y = x to the bit. No row changes another.

    reference.py   one step after the other: the definition, and the oracle of the tests
    chunked.py     matrix products of 32 steps each: what `reverse_recurrence` is

>>> import torch
>>> reverse_recurrence(torch.tensor([0.0, 0.0, 8.0]), 0.5)
tensor([2., 4., 8.])
"""

from __future__ import annotations

from purerl.kernels.recurrence.chunked import reverse_recurrence

__all__ = ["reverse_recurrence"]
