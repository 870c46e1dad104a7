"""Gradients of weights that are used several times in a forward pass, added up as soon as each of them exists.

Autograd collects the gradients of all uses of a weight before it adds their sum to `weight.grad`:

    prefixes read layer 1 ... n, then suffixes read layer 1 ... n    each weight is used twice
    backward: layer n ... 1 of the suffixes, then layer n ... 1 of the prefixes

So the gradients of one use of all layers exist beside `weight.grad`, which takes as much memory as the model. Here one
use gets an alias of the weight, a leaf of its own that has the same `grad`: autograd adds the gradient of a leaf to its
`grad` as soon as it can. The sum is the same up to rounding.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from purerl.errors import InputError

__all__ = ["added", "call_added"]


def added(weight: Tensor) -> Tensor:
    """An alias of `weight`, whose gradient is added to `weight.grad`; `weight` itself if it is no trained parameter.

    The backward pass raises InputError if `weight.grad` is another tensor by then, or if it creates a graph.
    """
    if not (torch.is_grad_enabled() and weight.requires_grad and weight.is_leaf):
        return weight
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    alias = weight.detach().requires_grad_()
    alias.grad = weight.grad
    alias.register_post_accumulate_grad_hook(partial(_check, weight))
    return alias


def call_added(module: nn.Module, **kwargs: Any) -> Any:
    """``module(**kwargs)`` with an alias of each trained parameter. The aliases are used in this call only."""
    if not torch.is_grad_enabled():
        return module(**kwargs)
    aliases = {name: added(weight) for name, weight in module.named_parameters() if weight.requires_grad}
    return functional_call(module, aliases, kwargs=kwargs)


def _check(weight: Tensor, alias: Tensor) -> None:
    if alias.grad is not weight.grad:
        need = "the tensor that it was in the forward pass, and a backward pass without create_graph"
        raise InputError("the gradient of a weight that is used twice", got="another tensor", need=need)
    alias.grad = None  # a graph that is kept does not keep the gradient
