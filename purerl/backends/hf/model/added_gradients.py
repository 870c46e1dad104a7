"""Gradients of weights that are used several times in a forward pass, added up as soon as each of them exists.

Autograd collects the gradients of all uses of a weight before it adds their sum to `weight.grad`:

    suffixes read layer 1 ... n, prefixes read layer 1 ... n    each weight is used twice
    backward: layer n ... 1 of the suffixes, then layer n ... 1 of the prefixes

So the gradients of one use of all layers exist beside `weight.grad`, which takes as much memory as the model. Here one
use gets an alias of the weight, and the backward pass adds the gradient of the alias to `weight.grad` immediately. The
sum is the same up to rounding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

__all__ = ["added", "call_added"]


def added(weight: Tensor) -> Tensor:
    """An alias of `weight`, whose gradient is added to `weight.grad`; `weight` itself if it is no trained parameter."""
    if not (torch.is_grad_enabled() and weight.requires_grad and weight.is_leaf):
        return weight
    return _Added.apply(weight)  # pyright: ignore[reportReturnType] - torch does not say what it returns


def call_added(module: nn.Module, **kwargs: Any) -> Any:
    """``module(**kwargs)`` with an alias of each trained parameter. The aliases are used in this call only."""
    if not torch.is_grad_enabled():
        return module(**kwargs)
    aliases = {name: added(weight) for name, weight in module.named_parameters() if weight.requires_grad}
    return functional_call(module, aliases, kwargs=kwargs)


class _Added(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.weight = weight
        return weight.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        weight = ctx.weight
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        weight.grad.add_(gradient)
