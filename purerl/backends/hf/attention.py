"""Attention of the single token that a decoding step adds, on a CPU.

transformers calls torch's attention kernel, which reads keys and values again for each query head that shares them.
Here, the query heads that share a key head become the queries of one head, so keys and values are read once. For narrow
heads two plain matrix products are faster than the kernel, which is made for many queries.

This file imports transformers. It is imported when a generator is built.
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
"""Width of heads up to which matrix products are faster, for four-byte numbers: see benchmarks/attention.py."""


def decode_faster(model: PreTrainedModel) -> None:
    """Make `model` use `attend` if that is faster: on a CPU, if it would use torch's kernel."""
    implementation = model.config._attn_implementation  # noqa: SLF001 - transformers has no public attribute for it
    if model.device.type == "cpu" and implementation == "sdpa":
        model.set_attn_implementation(_NAME)


def attend(query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scale: float) -> Tensor:
    """Attention of one token: softmax(scale * q . k) v, over the columns where `attention_mask` is true.

    query           [rows, heads, 1, width]
    key, value      [rows, key heads, columns, width]; heads is a multiple of key heads
    attention_mask  bool [rows, 1, 1, columns]; None: all columns

    Returns [rows, heads, 1, width].
    """
    grouped = query.unflatten(1, (key.shape[1], -1)).squeeze(3)
    if query.itemsize < 4 or query.shape[-1] > _NARROW:
        output = scaled_dot_product_attention(grouped, key, value, attn_mask=attention_mask, scale=scale)
    else:
        score = (scale * grouped) @ key.mT
        score = score if attention_mask is None else score.masked_fill_(~attention_mask, -torch.inf)
        output = score.softmax(-1) @ value
    return output.flatten(1, 2).unsqueeze(2)


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
