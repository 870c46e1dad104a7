"""A small random change of weights, which the same change undoes.

A random half of the numbers of a tensor change, and its first one. In each of these, some of the bits are flipped:

- the bit 2^-3 of the mantissa, so that the number changes by 1/16 to 1/8 of its size. Zeros, subnormal and infinite
  numbers and NaN stay as they are;
- in a part of a tensor in which nothing but 0, 2^-5 and 2^-5 with this bit occurs, such as zeros only: all bits of
  2^-5, so that 0 and 2^-5 change places.

The sign of x stays as it is. Bits that are flipped twice are those from before, so no copy of the weights is needed,
and nothing is rounded. Neither change turns a part of one kind into one of the other kind.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from attrs import frozen
from torch import Tensor

from purerl.protocols import Trainer, Weights
from purerl.seeds import derive_seed

__all__ = ["ChangedWeights", "SupportsChange", "change_bits", "change_tensors", "change_weights"]

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_ZERO_BECOMES = 2.0**-5
_PLACE = 3  # of the mantissa bit that is flipped
_NUMBERS = 2**18  # that are changed at a time: those of a part stay in the cache of a CPU


@runtime_checkable
class SupportsChange(Protocol):
    """An optional method of a trainer, for the check of a generator before the first step.

    Without it, the check gathers the weights, and uses `load_weights`.
    """

    def change_weights(self, names: Collection[str] | None, seed: int) -> list[str]:
        """Change those of `weights` in `names`, or all, as this module does; return all names.

        The same call again undoes it. The names are those of the trainer. It is called before the first `step` and
        `load`.
        """
        ...


@torch.no_grad()
def change_bits(x: Tensor, seed: int) -> None:
    """Change the floating-point numbers `x`, of 16 bits or more, in place. The same call undoes it.

    `seed` selects the numbers that change. Tensors of one shape on one kind of device change in the same places.

    >>> x = torch.tensor([2.0, 0.5, 1.0, -3.0])
    >>> change_bits(x, seed=1)
    >>> x
    tensor([ 2.2500,  0.5000,  1.1250, -3.2500])
    >>> change_bits(x, seed=1)
    >>> x
    tensor([ 2.0000,  0.5000,  1.0000, -3.0000])
    """
    if not x.is_floating_point() or x.element_size() not in _INTEGERS or x.numel() == 0:
        return
    draw = torch.Generator(x.device).manual_seed(seed)
    parts = [x[None]] if x.ndim == 0 else x.split(max(1, _NUMBERS * len(x) // x.numel()))
    for part in parts:
        chosen = _random_half(part.shape, draw)
        chosen[(0,) * chosen.ndim] = True  # also a tensor with one number changes
        _flip(part, chosen)


def _random_half(shape: torch.Size, draw: torch.Generator) -> Tensor:
    """Booleans of this shape, each true with probability 1/2. Each random number of 64 bits gives eight of them."""
    count = shape.numel()
    words = torch.empty(-(-count // 8), dtype=torch.int64, device=draw.device)
    words.random_(-(2**63), None, generator=draw)
    return (words.view(torch.uint8)[:count] & 1).view(torch.bool).view(shape)


def _flip(x: Tensor, chosen: Tensor) -> None:
    """Flip bits of the `chosen` numbers of `x` in place. `chosen` is changed, too."""
    limits, bits = torch.finfo(x.dtype), x.view(_INTEGERS[x.element_size()])
    zero = int(torch.tensor(_ZERO_BECOMES, dtype=x.dtype).view(bits.dtype))
    mantissa = 1 << (-round(math.log2(limits.eps)) - _PLACE)
    size = x.abs()
    if _is_of_zeros(bits, zero, mantissa):
        chosen &= (size == 0) | (size == _ZERO_BECOMES)
        bits ^= chosen.to(bits.dtype) * zero
    else:
        chosen &= size >= limits.tiny
        chosen &= size <= limits.max
        bits ^= chosen.to(bits.dtype) * mantissa


def _is_of_zeros(bits: Tensor, zero: int, mantissa: int) -> bool:
    """Whether no number but 0, `zero`, and these two with the bit `mantissa` occurs in `bits`. Most first ones tell."""
    ignored = torch.iinfo(bits.dtype).max ^ mantissa
    if int(bits[(0,) * bits.ndim]) & ignored not in (0, zero):
        return False
    size = bits & ignored
    return bool(((size == 0) | (size == zero)).all())


def change_tensors(tensors: Mapping[str, Tensor], names: Collection[str] | None, seed: int) -> list[str]:
    """Change those of `tensors` that are among `names`, or all, in place; return the names of all `tensors`.

    A tensor that is divided over ranks changes in each part, and its copies on other ranks change alike.
    """
    from torch.distributed.tensor import DTensor

    for name, tensor in tensors.items():
        if names is None or name in names:
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            change_bits(local.detach(), derive_seed(seed, "change", name) % 2**31)
    return list(tensors)


@frozen
class ChangedWeights:
    """`weights`, of which those in `names`, or all, are changed. They are copied one at a time."""

    weights: Weights
    names: Collection[str] | None
    seed: int

    @property
    def adapter(self) -> Mapping[str, Any] | None:
        return self.weights.adapter

    @property
    def metadata(self) -> Mapping[str, tuple[tuple[int, ...], torch.dtype]]:
        return self.weights.metadata

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, value in self.weights:
            value = value.detach().clone()
            change_tensors({name: value}, self.names, self.seed)
            yield name, value


def change_weights(trainer: Trainer, names: Collection[str] | None, seed: int) -> list[str]:
    """Change those weights of `trainer` that are among `names`, or all; return the names of all. Collective."""
    if isinstance(trainer, SupportsChange):
        return trainer.change_weights(names, seed)
    weights = trainer.weights()
    trainer.load_weights(ChangedWeights(weights, names, seed))
    return list(weights.metadata)
