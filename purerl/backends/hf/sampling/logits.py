"""Logits in float32 of a model with narrow weights.

A product of bfloat16 factors is a sum in float32, which is rounded to 8 bits at the end. For a logit of 20 that is an
error of up to 0.06, so the log-probability of a sampled token would not be that of the hidden state. The trainer's
logits are not rounded either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from purerl.system.devices.cuda import has_wide_products

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["WideHead"]


class WideHead:
    """Makes the output head of `model` return float32, if it is a linear layer of narrow weights.

    On devices that have such products, the factors are narrow, and the result is not rounded. On others the head has a
    copy in float32, which `follow_weights` renews.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        head: Any = model.get_output_embeddings()
        is_narrow = type(head) is nn.Linear and head.weight.itemsize < 4
        self._head: Any = head if is_narrow else None
        self._copy: Tensor | None = None
        if self._head is not None:
            self._head.forward = self._forward
            self.follow_weights()

    @torch.no_grad()
    def follow_weights(self) -> None:
        """The weights of the model have changed."""
        if self._head is not None and not has_wide_products(self._head.weight):
            self._copy = self._head.weight.float()

    def _forward(self, hidden: Tensor) -> Tensor:
        head: Any = self._head
        bias = None if head.bias is None else head.bias.float()
        if self._copy is not None:
            return functional.linear(hidden.float(), self._copy, bias)
        product = torch.mm(hidden.flatten(0, -2), head.weight.t(), out_dtype=torch.float32)
        logits = product.unflatten(0, hidden.shape[:-1])
        return logits if bias is None else logits + bias
