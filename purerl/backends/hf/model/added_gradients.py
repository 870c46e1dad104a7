"""Gradients of weights that are used several times in a forward pass, added up as soon as each of them exists.

Autograd collects the gradients of all uses of a weight before it adds their sum to `weight.grad`:

    prefixes read layer 1 ... n, then suffixes read layer 1 ... n    each weight is used twice
    backward: layer n ... 1 of the suffixes, then layer n ... 1 of the prefixes

So the gradients of one use of all layers exist beside `weight.grad`, which takes as much memory as the model. Here one
use gets an alias of the weight, a leaf of its own: autograd computes the gradient of a leaf as soon as it can, and a
hook adds it to `weight.grad`. The sum is the same up to rounding.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

__all__ = ["added", "call_added"]


def added(weight: Tensor) -> Tensor:
    """An alias of `weight`, whose gradient is added to `weight.grad`; `weight` itself if it is no trained parameter."""
    if not (torch.is_grad_enabled() and weight.requires_grad and weight.is_leaf):
        return weight
    alias = weight.detach().requires_grad_()
    alias.register_post_accumulate_grad_hook(partial(_add, weight))
    return alias


def call_added(module: nn.Module, **kwargs: Any) -> Any:
    """``module(**kwargs)`` with an alias of each trained parameter. The aliases are used in this call only."""
    if not torch.is_grad_enabled():
        return module(**kwargs)
    aliases = {name: added(weight) for name, weight in module.named_parameters() if weight.requires_grad}
    return functional_call(module, aliases, kwargs=kwargs)


def _add(weight: Tensor, alias: Tensor) -> None:
    if weight.grad is None:
        weight.grad = alias.grad
    else:
        weight.grad.add_(alias.grad)
    alias.grad = None
