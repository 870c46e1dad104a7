"""The reverse recurrence, the one loop over time that reinforcement learning needs.

    y_t = x_t + decay_t * y_{t+1},   y_T = 0

With rewards as x it gives discounted returns; with a decay of 1 at some steps, returns that lose nothing there.

Contract. x is [..., time], of a floating dtype, and finite. `decay` lies in [0, 1]; it is a number, which is rounded to
x's dtype, or a tensor that broadcasts to x: [..., 1] gives each row its own, [..., time] each step. The result has the
shape, dtype and device of x, and is differentiable in x and in a `decay` that is a tensor. Nothing is divided and
nothing overflows. A decay of 0 gives y = x to the bit. No row changes another.

    reference.py   one step after the other: the definition, and the oracle of the tests
    chunked.py     four steps of all chunks at once, and then the chunks: what `reverse_recurrence` is

>>> import torch
>>> reverse_recurrence(torch.tensor([0.0, 0.0, 8.0]), 0.5)
tensor([2., 4., 8.])
>>> reverse_recurrence(torch.tensor([0.0, 0.0, 8.0]), torch.tensor([0.5, 1.0, 0.5]))
tensor([4., 8., 8.])
"""

from __future__ import annotations

from purerl.kernels.recurrence.chunked import reverse_recurrence

__all__ = ["reverse_recurrence"]
