"""Functions of a mask. Reductions over time read it as bytes, because torch reduces bool tensors slowly on a CPU.

Contract: `mask` is bool, of shape [..., time]. Every function refuses another dtype: torch would read 0 and 1 as
numbers, with `&` and `~` bit by bit, and the bytes of an int64 as eight steps. The reductions have no gradient, and
nothing synchronizes with an accelerator. Each function equals the torch expression in the first line of its docstring.
The tests use that as the reference.

>>> import torch
>>> mask = torch.tensor([[False, True, True], [False, False, False]])
>>> any_true(mask), count_true(mask), first_true(mask)
(tensor([ True, False]), tensor([2, 0]), tensor([1, 0]))
"""

from __future__ import annotations

from importlib.metadata import version

import torch

from purerl.errors import InputError

__all__ = ["any_true", "as_bytes", "as_mask", "count_true", "first_true", "masked"]

_IS_VIEW_BATCHED = tuple(map(int, version("torch").split(".")[:2])) >= (2, 13)
"""Whether `torch.func.vmap` knows views of another dtype. torch 2.11 does not; 2.12 was not tried."""


def as_mask(mask: torch.Tensor, of: torch.Tensor | None = None) -> torch.Tensor:
    """``mask``, if it is bool, and fits the values `of`. All other functions of masks call it, or a function that does.

    Raises: InputError for another dtype; and if `mask` and `of` have axes, but not as many, because torch would take a
    value of each row for one of each token.

    >>> as_mask(torch.tensor([1, 0]))
    Traceback (most recent call last):
    purerl.errors.InputError: a mask that is not bool
      got:  torch.int64 [2]
      need: True or False for each token or row
      do:   give mask.bool()
    >>> as_mask(torch.tensor([True, False]), torch.ones(2, 2))
    Traceback (most recent call last):
    purerl.errors.InputError: a mask of another shape
      got:  [2] for values of shape [2, 2]
      need: a mask with the axes of the values
      do:   give both per token, or both per row
    """
    if mask.dtype != torch.bool:
        need, do = "True or False for each token or row", "give mask.bool()"
        raise InputError("a mask that is not bool", got=f"{mask.dtype} {list(mask.shape)}", need=need, do=do)
    if of is not None and of.ndim != mask.ndim and of.ndim and mask.ndim:
        got, need = f"{list(mask.shape)} for values of shape {list(of.shape)}", "a mask with the axes of the values"
        raise InputError("a mask of another shape", got=got, need=need, do="give both per token, or both per row")
    return mask


def masked(x: torch.Tensor, mask: torch.Tensor, other: float = 0) -> torch.Tensor:
    """``torch.where(mask, x, other)``: `x` where the mask is True, `other` elsewhere, also in place of inf and NaN.

    Raises: InputError as `as_mask` of `x`.
    """
    return torch.where(as_mask(mask, x), x, other)


def as_bytes(mask: torch.Tensor) -> torch.Tensor:
    """``mask.to(torch.uint8)``, without a copy if torch allows it: 1 where True, 0 elsewhere. Same shape."""
    mask = as_mask(mask)
    return mask.view(torch.uint8) if _IS_VIEW_BATCHED else mask.to(torch.uint8)


def any_true(mask: torch.Tensor) -> torch.Tensor:
    """``mask.any(-1)``: whether any step of a row is True. [..., time] -> [...], bool."""
    return as_bytes(mask).amax(-1) > 0 if mask.shape[-1] else as_mask(mask).any(-1)


def count_true(mask: torch.Tensor) -> torch.Tensor:
    """``mask.sum(-1)``: the number of True steps of a row. [..., time] -> [...], int64."""
    return as_bytes(mask).sum(-1, dtype=torch.int32).long()


def first_true(mask: torch.Tensor) -> torch.Tensor:
    """``mask.max(-1).indices``: the index of the first True step of a row, or 0. [..., time] -> [...], int64.

    Steps are numbered from the end, from 1 to time. The maximum over the True steps is then the first of them.

    Raises: IndexError if time is 0, as torch does.
    """
    time = mask.shape[-1]
    dtype = torch.int16 if time < 2**15 else torch.int64
    steps_to_end = torch.arange(time, 0, -1, dtype=dtype, device=mask.device)
    return (time - (steps_to_end * as_bytes(mask)).amax(-1).long()) % time
