"""Attention with a mask, on a CPU: of the token that a decoding step adds, and of tokens that continue a sequence.

transformers repeats keys and values for each query head that shares them. Here, the query heads that share a key head
become further queries of one head, so keys and values are read once, and not copied. For one token and narrow heads two
plain matrix products are faster than torch's kernel, which is made for many queries.

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
    """Attention of some tokens: softmax(scale * q . k + attention_mask) v.

    query           [rows, heads, time, width]
    key, value      [rows, key heads, columns, width]; heads is a multiple of key heads
    attention_mask  [rows, 1, time, columns]: which columns are read. For one token it is in the dtype of `query`, 0 in
                    the columns that are read, and -inf in the others. None: all columns are read

    Returns [rows, heads, time, width].
    """
    time, shared = query.shape[2], query.shape[1] // key.shape[1]
    grouped = query.unflatten(1, (key.shape[1], shared)).flatten(2, 3)
    if time > 1 or query.itemsize < 4 or query.shape[-1] > _NARROW:
        mask = attention_mask if attention_mask is None or time == 1 else attention_mask.repeat(1, 1, shared, 1)
        output = scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scale)
    else:
        score = (scale * grouped) @ key.mT
        score = score if attention_mask is None else score.add_(attention_mask)
        output = score.softmax(-1) @ value
    return output.unflatten(2, (shared, time)).flatten(1, 2)


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
    is_causal = query.shape[2] > 1 and attention_mask is None  # torch's kernel needs no mask for this
    if is_causal or position_bias is not None:
        kwargs |= {"scaling": scaling, "position_bias": position_bias}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend(query, key, value, attention_mask, scale).transpose(1, 2), None


def _mask(*args: Any, q_length: int, dtype: torch.dtype, **kwargs: Any) -> Tensor | None:
    """The mask of transformers. That of one token is added to scores, which is faster than `masked_fill_`."""
    mask = sdpa_mask(*args, q_length=q_length, dtype=dtype, **kwargs)
    return 1 - 1 / mask.to(dtype) if mask is not None and q_length == 1 else mask


AttentionInterface.register(_NAME, _forward)
AttentionMaskInterface.register(_NAME, _mask)
