"""What golden tests are written with: numbers in float64, masks as pictures, and how a number is compared."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["close", "f64", "ints", "logs", "slope", "where"]


def f64(*values: float | list) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def ints(*values: int | list) -> Tensor:
    return torch.tensor(values)


def logs(*values: float | list) -> Tensor:
    """Log-probabilities, or log-ratios, from what they are the logarithms of."""
    return f64(*values).log()


def where(*rows: str) -> Tensor:
    """A mask [rows, time] from a picture of each row, with x for True; `where("xx.")[0]` is one [rows]."""
    return torch.tensor([[kind == "x" for kind in row] for row in rows])


def close(found: Tensor, *expected: float | list, digits: float = 1e-12) -> None:
    torch.testing.assert_close(found, f64(*expected), atol=digits, rtol=0)


def slope(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The gradient of the sum of function(x)."""
    x = x.clone().requires_grad_()
    return torch.autograd.grad(function(x).sum(), x)[0]
