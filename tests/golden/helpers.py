"""Helpers of the golden tests: float64 tensors, masks from strings, and comparisons."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["assert_values", "f64", "gradient_of", "ints", "logs", "mask_of"]


def f64(*values: float | list) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def ints(*values: int | list) -> Tensor:
    return torch.tensor(values)


def logs(*values: float | list) -> Tensor:
    """Logarithms of probabilities, or of ratios."""
    return f64(*values).log()


def mask_of(*rows: str) -> Tensor:
    """A mask [rows, time] with one string per row, in which x is True; `mask_of("xx.")[0]` is a mask [rows]."""
    return torch.tensor([[character == "x" for character in row] for row in rows])


def assert_values(actual: Tensor, *expected: float | list, atol: float = 1e-12) -> None:
    torch.testing.assert_close(actual, f64(*expected), atol=atol, rtol=0)


def gradient_of(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The gradient of the sum of function(x)."""
    x = x.clone().requires_grad_()
    return torch.autograd.grad(function(x).sum(), x)[0]
