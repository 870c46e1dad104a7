"""Merging an adapter into the weights of a model.

    merged = W + scale * B A        in float32 (float64 for float64 weights), then rounded to the dtype of W

W is always the weight without any adapter. So the rounding of one update is not part of the next one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from purerl.backends.hf.lora import check_supported, scale_of
from purerl.backends.hf.weights.model_weights import copy_into
from purerl.errors import EngineError, nearest
from purerl.protocols import Weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["PREFIX", "AdapterMerger", "merge"]

PREFIX = "base_model.model."
"""Prefix of names in peft's files, before the name of the module in the model."""

_NAME = re.compile(rf"{re.escape(PREFIX)}(.+)\.lora_([AB])\.weight")


def merge(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """The sum weight + scale * b a, in float32 or wider, in the dtype and on the device of `weight`.

    >>> merge(torch.ones(2, 2, dtype=torch.bfloat16), torch.ones(1, 2), torch.ones(2, 1), 0.5)[0]
    tensor([1.5000, 1.5000], dtype=torch.bfloat16)
    """
    wide = torch.promote_types(weight.dtype, torch.float32)
    a, b = (part.to(weight.device, wide) for part in (a, b))
    return torch.addmm(weight.to(wide), b, a, alpha=scale).to(weight.dtype)


class AdapterMerger:
    """Loads weights into `model`; those of an adapter are merged.

    The weights without adapter of the layers that an adapter changes are kept in the memory of the CPU, from the first
    adapter on.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._base: dict[str, Tensor] = {}

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        """Copy `weights`, or merge them if they belong to an adapter, in place of any earlier adapter.

        Raises: EngineError for a name or a shape that the model does not have, for an adapter without weights, and for
        one that is more than LoRA of linear layers; nothing has changed then.
        """
        if weights.adapter is None:
            copy_into(self._model, weights)
            self._base.clear()
            return
        check_supported(weights.adapter, EngineError, "weights of an adapter")
        own = dict(self._model.named_parameters())
        pairs = _pairs(weights, own)
        for name in self._base.keys() - pairs.keys():
            own[name].copy_(self._base.pop(name))
        for name, pair in pairs.items():
            base = self._base.setdefault(name, own[name].detach().to("cpu", copy=True))
            own[name].copy_(merge(base.to(own[name].device), *pair, scale_of(weights.adapter)))


def _pairs(weights: Weights, own: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """The matrices of `weights` by the name of the weight that they change, one of `own`."""
    matrices: dict[str, dict[str, Tensor]] = {}
    for name, value in weights:
        match = _NAME.fullmatch(name)
        if match is None:
            need = f"{PREFIX}LAYER.lora_A.weight or ...lora_B.weight, as in peft's files"
            raise EngineError(f"unknown weight {name!r} of an adapter", need=need)
        matrices.setdefault(f"{match[1]}.weight", {})[match[2]] = value.detach()
    if not matrices:
        need = "the matrices of at least one layer"
        raise EngineError("weights of an adapter", got="no weights", need=need)
    return {name: _pair(name, parts, own) for name, parts in matrices.items()}


def _pair(name: str, parts: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """A [rank, inputs] and B [outputs, rank], which change the weight `name`."""
    if name not in own:
        need = "a weight that the engine's model has"
        raise EngineError(f"an adapter of the unknown weight {name!r}", need=need, do=nearest(name, own))
    shapes = {key: list(value.shape) for key, value in parts.items()}
    outputs, inputs = own[name].shape
    if parts.keys() != {"A", "B"} or shapes != {"A": [len(parts["A"]), inputs], "B": [outputs, len(parts["A"])]}:
        need = f"A [rank, {inputs}] and B [{outputs}, rank]"
        got = ", ".join(f"{key} {shape}" for key, shape in sorted(shapes.items()))
        raise EngineError(f"an adapter of {name!r}", got=got, need=need)
    return parts["A"], parts["B"]
