"""Attention of the one token that a decoding step adds, on a CPU.

transformers hands it to torch's kernel, which reads keys and values anew for each head that shares them. Here the heads
that share keys are the queries of one head, so that all are read once; and where heads are narrow two plain products
are faster than the kernel, which is made for many queries.

This file imports transformers, and is imported when a generator is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["attend", "decode_faster"]

_NAME = "purerl_decoding"
_NARROW = 32
"""The width of heads up to which products are faster, where numbers have four bytes: see benchmarks/attention.py."""


def decode_faster(model: PreTrainedModel) -> None:
    """Have `model` attend by `attend` where that is faster: on a CPU, if it would use torch's kernel."""
    kernel = model.config._attn_implementation  # noqa: SLF001 - the one place where a model says so
    if model.device.type == "cpu" and kernel == "sdpa":
        model.set_attn_implementation(_NAME)


def attend(query: Tensor, key: Tensor, value: Tensor, there: Tensor | None, scale: float) -> Tensor:
    """What one token sees: softmax(scale * q . k) over the columns that are `there`, times v.

    Shapes: query [rows, heads, 1, width], key and value [rows, shared, columns, width] with heads a multiple of shared,
    there [rows, 1, 1, columns], or None for all; the answer is [rows, heads, 1, width].
    """
    together = query.unflatten(1, (key.shape[1], -1)).squeeze(3)
    if query.itemsize < 4 or query.shape[-1] > _NARROW:
        seen = scaled_dot_product_attention(together, key, value, attn_mask=there, scale=scale)
    else:
        score = (scale * together) @ key.mT
        score = score if there is None else score.masked_fill_(~there, -torch.inf)
        seen = score.softmax(-1) @ value
    return seen.flatten(1, 2).unsqueeze(2)


def _forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    if query.shape[2] > 1 or position_bias is not None:
        kwargs |= {"scaling": scaling, "position_bias": position_bias}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend(query, key, value, attention_mask, scale).transpose(1, 2), None


AttentionInterface.register(_NAME, _forward)
AttentionMaskInterface.register(_NAME, sdpa_mask)
