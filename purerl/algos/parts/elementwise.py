"""Elementwise functions of tensors whose settings are numbers or tensors, and whose gradients are finite.

A setting is a number, or a 0-d tensor if `torch.func` maps over it or differentiates by it. torch takes two bounds only
if both are of the same kind, and `math` has no gradient. The settings of one function may be of both kinds.
"""

from __future__ import annotations

import math

import torch

from purerl.errors import InputError

__all__ = ["add_eps", "alike", "clip", "log", "log1p", "logsigmoid", "narrowed", "square_root", "widened"]


def alike(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return `x`, if it has as many axes as `other`, or if one of both has none.

    Raises: InputError otherwise: torch would take a value of each row for one of each token.
    """
    if x.ndim != other.ndim and x.ndim and other.ndim:
        got, need = f"{list(x.shape)} and {list(other.shape)}", "both per token, or both per row"
        raise InputError("values of other shapes", got=got, need=need, do="write values of rows to tokens first")
    return x


def add_eps(x: torch.Tensor, eps: float | torch.Tensor) -> torch.Tensor:
    """Compute x + eps, and add the smallest normal number of the dtype, which rounds 1e-8 to 0 if it is float16.

    So the result is above 0 if `x` is not below 0. In float32 and float64, the second addition changes nothing beside a
    usual `eps`. Shapes: any; the result has the shape of `x`.

    >>> add_eps(torch.tensor(0.0, dtype=torch.float16), 1e-8) > 0
    tensor(True)
    """
    return x + eps + torch.finfo(x.dtype).tiny


def clip(x: torch.Tensor, low: float | torch.Tensor, high: float | torch.Tensor) -> torch.Tensor:
    """Compute ``x.clamp(low, high)``, in which one of the bounds may be a number and the other a tensor.

        y = min(max(x, low), high)

    Shapes: any; the result has the shape of `x`.

    >>> clip(torch.tensor([0.1, 2.0, 9.0]), 0.5, torch.tensor(5.0))
    tensor([0.5000, 2.0000, 5.0000])
    """
    if isinstance(low, torch.Tensor) != isinstance(high, torch.Tensor):
        return x.clamp(min=low).clamp(max=high)
    return x.clamp(low, high)  # pyright: ignore[reportCallIssue, reportArgumentType] -- two numbers, or two tensors


def log(x: float | torch.Tensor) -> float | torch.Tensor:
    """Compute the natural logarithm of a number or a tensor, -inf of 0. Raises: ValueError for a number below 0."""
    return x.log() if isinstance(x, torch.Tensor) else math.log(x) if x else -math.inf


def log1p(x: float | torch.Tensor) -> float | torch.Tensor:
    """Compute log(1 + x) of a number or a tensor, -inf of -1. Raises: ValueError for a number below -1."""
    return x.log1p() if isinstance(x, torch.Tensor) else math.log1p(x) if x != -1 else -math.inf


def logsigmoid(x: torch.Tensor) -> torch.Tensor:
    """Compute log(1 / (1 + exp(-x))), without overflow. Shapes: any; the result has the shape of `x`."""
    return torch.nn.functional.logsigmoid(x)


def widened(x: torch.Tensor) -> torch.Tensor:
    """Return `x` in float32 if it has 16 bits, in which sums of many values overflow or lose small ones; else `x`.

    >>> widened(torch.tensor(0.5, dtype=torch.float16)).dtype
    torch.float32
    """
    return x.float() if x.is_floating_point() and x.itemsize < 4 else x


def narrowed(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return `y`, which was computed from ``widened(x)``, in the dtype of `x`."""
    return y.to(x.dtype) if x.is_floating_point() else y


def square_root(square: torch.Tensor) -> torch.Tensor:
    """Compute the square root, with the gradient 0 at 0, where that of torch is infinite.

    A standard deviation of 0 is that of equal values. The gradient of the mean absolute value has the same convention.
    Shapes: any.

    >>> x = torch.tensor([4.0, 0.0], requires_grad=True)
    >>> torch.autograd.grad(square_root(x).sum(), x)[0]
    tensor([0.2500, 0.0000])
    """
    is_zero = square == 0
    return torch.where(is_zero, 0, torch.where(is_zero, 1, square).sqrt())
