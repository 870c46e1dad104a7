"""Sequence parallelism (Ulysses): each rank of a group computes a part of the positions of every sequence.

    a layer        positions of this rank, all heads
    its attention  all positions, heads of this rank: an all-to-all before it, and one after it

Everything else in a layer works on each position alone. Reference: Jacobs et al., "DeepSpeed Ulysses" (2023).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from purerl.backends.hf.model.packed_attention import Boundaries, attend_pack, band

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["own_positions", "split_attention", "sum_over"]


def split_attention(model: PreTrainedModel, group: dist.ProcessGroup) -> None:
    """Have the attention of `model` exchange heads for positions between the ranks of `group`."""
    name = "purerl_ulysses_" + "_".join(map(str, dist.get_process_group_ranks(group)))
    AttentionInterface.register(name, partial(_attend, group=group))
    AttentionMaskInterface.register(name, _no_mask)
    model.set_attn_implementation(name)


def own_positions(width: int, group: dist.ProcessGroup) -> tuple[int, int]:
    """The first position of this rank and the number of its positions, of sequences of at least `width` tokens."""
    size = -(-width // dist.get_world_size(group))
    return size * dist.get_rank(group), size


def sum_over(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum of `values` over the ranks of `group`, where at most one rank has a value other than 0.

    Every rank computes the same loss from the sum, and takes the gradient of its own values.
    """
    return _Sum.apply(values, group)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = values.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """No mask: that of transformers would be for the positions of this rank, and `_attend` makes one for all."""


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    group: dist.ProcessGroup,
    scaling: float | None = None,
    sliding_window: int | None = None,
    boundaries: Boundaries | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention; query [rows, heads, positions of this rank, width], key and value with fewer heads.

    With `boundaries` there is one pack, and no token attends to another row of it.
    """
    if key.shape[1] % dist.get_world_size(group):
        key, value = (x.repeat_interleave(query.shape[1] // key.shape[1], 1) for x in (key, value))
    query, key, value = (_to_heads(x, group) for x in (query, key, value))
    attend = partial(_causal, scaling=scaling, sliding_window=sliding_window)
    if boundaries is None:
        output = attend(query, key, value)
    else:
        options = {"scaling": scaling, "sliding_window": sliding_window}
        output = attend_pack(attend, query, key, value, boundaries, **options)
    return _to_positions(output.transpose(1, 2), group).transpose(1, 2).contiguous(), None


def _causal(query: Tensor, key: Tensor, value: Tensor, *, scaling: float | None, sliding_window: int | None) -> Tensor:
    """Causal attention, from [rows, heads, tokens, width] to [rows, tokens, heads, width]."""
    within = None if sliding_window is None else band(query.shape[2], sliding_window, query.device)
    output = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=within,
        is_causal=within is None,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output.transpose(1, 2)


def _to_heads(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """From [rows, heads, positions of this rank, width] to [rows, heads of this rank, positions, width]."""
    size = dist.get_world_size(group)
    received = _exchange(x.unflatten(1, (size, -1)).movedim(1, 0), group)  # [positions of a rank, rows, heads, ...]
    return received.permute(1, 2, 0, 3, 4).flatten(2, 3)


def _to_positions(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The inverse of `_to_heads`."""
    size = dist.get_world_size(group)
    received = _exchange(x.unflatten(2, (size, -1)).movedim(2, 0), group)  # [heads of a rank, rows, heads, ...]
    return received.permute(1, 0, 2, 3, 4).flatten(1, 2)


def _exchange(parts: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Send part k of `parts` to rank k, and receive one part from each rank."""
    return all_to_all_single_autograd(parts.contiguous(), None, None, group)
