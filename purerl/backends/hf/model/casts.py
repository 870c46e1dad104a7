"""Weights in the dtype of matrix products, which are cast once in an optimizer step.

Autocast casts a weight each time that a layer reads it: in every micro-batch, and again where layers are recomputed. If
the generator samples with a model in this dtype, that model has the casts already. So linear layers read them too:

    forward   y = x cast(W)^T + cast(b)        with x in the dtype of the cast, as under autocast
    backward  dL/dW = dL/dcast(W), in the dtype of W

The results are those of autocast, bit for bit. `refresh` follows an optimizer step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["Casts", "wide_names"]


class Casts:
    """Copies in `dtype` of the weights of `model` that a model loaded in `dtype` would have in it.

    of  by id of the weight: its copy, or the weight itself if it has this dtype already, or never gets it
    """

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        kept = wide_names(model, dtype)
        self.of: dict[int, Any] = {}
        self._pairs: list[tuple[Tensor, Tensor]] = []
        for name, weight in _weights(model).items():
            if weight.dtype == dtype or not weight.is_floating_point() or kept.search(name):
                self.of[id(weight)] = weight
                continue
            copy = weight.detach().to(dtype)
            self.of[id(weight)] = nn.Parameter(copy, requires_grad=False) if isinstance(weight, nn.Parameter) else copy
            self._pairs.append((weight.detach(), copy))

    @torch.no_grad()
    def refresh(self) -> None:
        """The weights have changed: cast them again."""
        for weight, copy in self._pairs:
            copy.copy_(weight)

    def use_in(self, decoder: nn.Module) -> None:
        """Let the linear layers of `decoder` read the copies under autocast."""
        layers: list[Any] = [layer for layer in decoder.modules() if type(layer) is nn.Linear]
        for layer in layers:
            if layer.weight.dtype == torch.float32:
                copies = (self.of[id(layer.weight)], None if layer.bias is None else self.of[id(layer.bias)])
                layer.forward = partial(_linear, layer, copies)


def wide_names(model: PreTrainedModel, dtype: torch.dtype) -> re.Pattern[str]:
    """A pattern of the names of weights that stay in float32 when `model` is loaded in `dtype`."""
    plan: Any = model._get_dtype_plan(dtype)  # noqa: SLF001 - transformers has no public name for it
    return re.compile("|".join(pattern.replace("*", ".*") for pattern in plan) or "(?!)")


def _weights(model: PreTrainedModel) -> Mapping[str, Tensor]:
    """The parameters of `model`, and the buffers that are in its files."""
    files = {*model.state_dict()}
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in files}
    return {**dict(model.named_parameters()), **buffers}


def _linear(layer: nn.Linear, copies: tuple[Tensor, Tensor | None], x: Tensor) -> Tensor:
    """`layer` of x, with its weights in `copies`."""
    if not torch.is_autocast_enabled(x.device.type):
        return functional.linear(x, layer.weight, layer.bias)
    weight, bias = (
        None if own is None else _CastOf.apply(own, copy)
        for own, copy in zip((layer.weight, layer.bias), copies, strict=True)
    )
    return functional.linear(x, weight, bias)  # pyright: ignore[reportArgumentType] - the weight is not None


class _CastOf(torch.autograd.Function):
    """The cast of a weight, which exists already."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, copy: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.dtype = weight.dtype
        return copy.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient.to(ctx.dtype), None
