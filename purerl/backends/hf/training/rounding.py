"""Storing float32 numbers in bfloat16 without losing anything on average.

bfloat16 has 8 significant bits, so a weight w is a multiple of about w / 256. An update that is smaller than half of
that is lost if the sum is rounded to nearest, in every step, although the sum of many such updates is large. Two rules
lose nothing:

    stochastic    x is rounded up or down at random, with E[y] = x
    compensated   y is x rounded to nearest. The 16 bits of x that y does not have are kept beside it, so x is known
                  exactly: the weight is a float32 weight in two parts

Random numbers are a function of the seed, the number of the optimizer step, the name of the parameter, and the index of
the element in the whole parameter. So they do not depend on how ranks divide it, and a resumed run has the same ones.

References: Gupta et al. 2015 (1502.02551) for stochastic rounding of weights; Zamirai et al. 2020 (2010.06192) for both
rules with bfloat16 weights. Difference from the latter: its compensation is a bfloat16 number, which loses updates
below 2^-17 of a weight; the remainder here is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from attrs import define, field
from torch import Tensor

from purerl.backends.hf.weights.chunks import Chunk
from purerl.backends.sampling import random_bits
from purerl.ranks import Ranks
from purerl.seeds import derive_seed

__all__ = [
    "REMAINDER",
    "Rounding",
    "drop_remainders",
    "is_narrow",
    "join",
    "random_shorts",
    "round_stochastically",
    "rounding_of",
    "split",
]

REMAINDER = "remainder"
"""The name of the 16 bits of each weight that bfloat16 does not have, in the state of an optimizer."""

_BITS = 16
_HALF = 1 << (_BITS - 1)


def is_narrow(tensor: Tensor) -> bool:
    """Whether `tensor` is one of weights whose updates must not be rounded to nearest."""
    return tensor.dtype == torch.bfloat16


def round_stochastically(x: Tensor, noise: Tensor) -> Tensor:
    """Round float32 numbers to one of the two nearest bfloat16 numbers, with the expected value x.

        y = truncate(bits(x) + r)          r uniform in 0 ... 2^16 - 1

    The 16 lowest bits of x over 2^16 are the probability that y is the number that is farther from 0. Numbers that
    bfloat16 has, infinities and NaN stay as they are. `noise` is int16, and its bits are r. Same shapes.

    >>> x = torch.full((4,), 1 + 2**-8)
    >>> round_stochastically(x, torch.tensor([0, 32767, -32768, -1], dtype=torch.int16))
    tensor([1.0000, 1.0000, 1.0078, 1.0078], dtype=torch.bfloat16)
    """
    bits = x.view(torch.int32) + (noise.to(torch.int32) & 0xFFFF)
    return torch.where(x.isnan(), x.to(torch.bfloat16), _upper(bits))


def split(x: Tensor) -> tuple[Tensor, Tensor]:
    """float32 numbers as bfloat16 numbers, rounded to nearest (ties away from 0), and int16 remainders.

    bits(x) = 2^16 bits(y) + remainder. `join` is the inverse.
    """
    bits = x.view(torch.int32)
    y = _upper(bits + _HALF)
    return y, (bits - (y.view(torch.int16).to(torch.int32) << _BITS)).to(torch.int16)


def join(y: Tensor, remainder: Tensor) -> Tensor:
    """The float32 numbers of which `split` made `y` and `remainder`.

    >>> x = torch.tensor([1.001, -3e-5, 1.00390625, 0.0])
    >>> torch.equal(join(*split(x)), x)
    True
    """
    bits = (y.view(torch.int16).to(torch.int32) << _BITS) + remainder.to(torch.int32)
    return bits.view(torch.float32)


def _upper(bits: Tensor) -> Tensor:
    """The bfloat16 numbers with the 16 upper bits."""
    return (bits >> _BITS).to(torch.int16).view(torch.bfloat16)


def random_shorts(seed: int, chunk: Chunk, shape: Sequence[int]) -> Tensor:
    """Four int16 random numbers for each element of `chunk`, which is a part of a tensor of this `shape`.

    Shape: that of the chunk, and 4. They are the same for an element in whatever chunk it is.
    """
    index, stride = chunk.values.new_zeros((), dtype=torch.int64), 1
    for axis in reversed(range(len(shape))):
        positions = torch.arange(chunk.values.shape[axis], device=chunk.values.device) + chunk.offsets[axis]
        index = index + positions.view(-1, *[1] * (len(shape) - 1 - axis)) * stride
        stride *= shape[axis]
    bits = random_bits(torch.tensor(seed, device=index.device), index)
    return bits.unsqueeze(-1).view(torch.int16)


@define(eq=False)
class Rounding:
    """Stores the updates of narrow weights, and measures how much of them is lost.

    names      of the parameters with narrow weights
    seed       of the run and the model
    keeps      whether the rule is `compensated`
    position   the number of the optimizer step

    It adds up, for each parameter in a step, exact update times stored update, exact update squared, and how many of
    its elements this rank has.
    """

    names: Mapping[Tensor, str]
    seed: int
    keeps: bool
    position: int = 0
    _sums: dict[Tensor, list[Tensor]] = field(factory=dict, init=False)

    def begin(self, position: int) -> None:
        """Start with the optimizer step number `position`."""
        self.position = position
        self._sums = {parameter: [] for parameter in self.names}

    def step(self, optimizer: Any, position: int, ranks: Ranks) -> float | None:
        """Let `optimizer` take its step number `position`; return what `lost` does. Collective."""
        self.begin(position)
        optimizer.step()
        return self.lost(ranks)

    def noise(self, parameter: Tensor, chunk: Chunk) -> Tensor:
        """Random numbers for `chunk`, a part of `parameter`, as `random_shorts`."""
        return random_shorts(
            derive_seed(self.seed, "rounding", self.position, self.names[parameter]), chunk, parameter.shape
        )

    def widened(self, weight: Tensor, remainder: Tensor | None) -> Tensor:
        """The float32 values of `weight`, a new tensor."""
        return weight.float() if remainder is None else join(weight, remainder)

    def store(
        self, parameter: Tensor, new: Tensor, weight: Tensor, remainder: Tensor | None, noise: Tensor | None
    ) -> None:
        """Write `new`, in float32, into `weight` and `remainder`, which are a part of `parameter`.

        `noise` is int16, for the rule `stochastic`.
        """
        before = self.widened(weight, remainder)
        if remainder is None:
            weight.copy_(round_stochastically(new, noise))
        else:
            for target, value in zip((weight, remainder), split(new), strict=True):
                target.copy_(value)
        exact, stored = new - before, self.widened(weight, remainder) - before
        size = torch.tensor(float(weight.numel()), device=weight.device)
        self._sums[parameter].append(torch.stack([(exact * stored).sum(), exact.square().sum(), size]))

    def lost(self, ranks: Ranks) -> float | None:
        """The share of the step's update that rounding removed, of all parameters on all `ranks`; None without update.

            lost = 1 - sum(exact * stored) / sum(exact^2)

        exact is the update in float32, and stored the change of what is stored. It is 1 if no weight has changed. It is
        0 on average if updates are rounded stochastically, and about 0 if there are many weights. Collective.
        """
        if not self._sums:
            return None
        rows = [torch.stack(parts).sum(0) if parts else torch.zeros(3) for parts in self._sums.values()]
        sums = ranks.sum(torch.stack([row.cpu() for row in rows]).double())
        copies = sums[:, 2] / torch.tensor([float(max(1, p.numel())) for p in self._sums], dtype=torch.float64)
        stored, exact = (float(total) for total in (sums[:, :2] / copies.clamp(min=1)[:, None]).sum(0))
        return 1 - stored / exact if exact else None


def rounding_of(trained: Mapping[str, Tensor], seed: int, *, keeps: bool) -> Rounding:
    """The `Rounding` of those of the parameters `trained`, by name, that are narrow."""
    return Rounding({parameter: name for name, parameter in trained.items() if is_narrow(parameter)}, seed, keeps=keeps)


def drop_remainders(optimizer: Any) -> None:
    """Remove all remainders from the state of `optimizer`, because the weights have been replaced."""
    for state in optimizer.state.values():
        state.pop(REMAINDER, None)
