"""Attention with a mask, on a CPU: of the token that a decoding step adds, and of tokens that continue a sequence.

transformers repeats keys and values for each query head that shares them. Here, the query heads that share a key head
become further queries of one head, so keys and values are read once, and not copied. For one token and narrow heads two
plain matrix products are faster than torch's kernel, which is made for many queries. They read all columns that the
table has stored, also those that are not in use: memory is read faster without gaps.
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
        output = _products(scale * grouped, key, value, attention_mask)
    return output.unflatten(2, (shared, time)).flatten(1, 2)


def _products(query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None) -> Tensor:
    """softmax(q . k + attention_mask) v, with weights of 0 for the stored columns that are no part of the views."""
    (key, of_key), (value, of_value) = _with_stored_columns(key), _with_stored_columns(value)
    score = (query @ key.mT)[..., of_key]
    score = score if attention_mask is None else score.add_(attention_mask)
    weight = score.new_zeros(*score.shape[:-1], value.shape[2])
    weight[..., of_value] = score.softmax(-1)
    return weight @ value


def _with_stored_columns(view: Tensor) -> tuple[Tensor, slice]:
    """All columns of the contiguous tensor [rows, heads, columns, width] of which `view` has some, and which it has.

    Any other tensor is returned as it is.
    """
    rows, heads, columns, width = view.shape
    stored = view.stride(1) // width
    offset = int(view.storage_offset())
    first = offset // width % max(1, stored)
    if view.stride() != (heads * stored * width, stored * width, width, 1) or first + columns > stored:
        return view, slice(0, columns)
    whole = view.as_strided((rows, heads, stored, width), view.stride(), offset - first * width)
    return whole, slice(first, first + columns)


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
