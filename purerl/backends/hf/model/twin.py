"""A second model of the same weights: the model of a trainer, as a generator decodes with it.

The trainer changes how its model reads tokens: layers are recomputed, rows are packed, matrices of an adapter are added
by peft. The generator changes other things. So each has modules of its own, which hold the same parameters.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["AdaptedLinear", "twin_of"]


def twin_of(model: PreTrainedModel, replaced: Mapping[int, Any], *, attention: str) -> PreTrainedModel:
    """`model` with modules of its own, as it was before a trainer changed them. No weight is copied.

    replaced   by id of a parameter or a buffer: what is in its place; others are those of `model`
    attention  the implementation

    A layer with an adapter becomes an `AdaptedLinear`.
    """
    own = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, {**own, **replaced})
    for module in twin.modules():
        module.__dict__.pop("forward", None)  # of recomputation, and of casts
    twin.set_attn_implementation(attention)
    for name, layer in _adapted(twin).items():
        twin.set_submodule(name, AdaptedLinear(layer))
    twin.config.dtype = twin.dtype
    return twin


def _adapted(model: nn.Module) -> dict[str, Any]:
    """The layers of `model` with an adapter of peft."""
    lora: Any = sys.modules.get("peft.tuners.lora")  # imported if there is an adapter; it takes a second
    modules = model.named_modules() if lora is not None else ()
    return {name: module for name, module in modules if isinstance(module, lora.LoraLayer)}


class AdaptedLinear(nn.Module):
    """A linear layer with an adapter, without gradient: y = W x + b + scale * B A x, in few operations."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        (name,) = layer.active_adapters
        self.base, self.scale = layer.base_layer, layer.scaling[name]
        self.a, self.b = layer.lora_A[name].weight, layer.lora_B[name].weight

    def forward(self, x: Tensor) -> Tensor:
        result = self.base(x)
        low = functional.linear(x.to(self.a.dtype), self.a)
        if result.dtype != low.dtype:  # matrices in float32 beside 16-bit weights
            return (result + self.scale * functional.linear(low, self.b)).to(result.dtype)
        rows = torch.addmm(result.flatten(0, -2), low.flatten(0, -2), self.b.t(), alpha=self.scale)
        return rows.view_as(result)
