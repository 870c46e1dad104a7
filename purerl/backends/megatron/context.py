"""Context parallelism: the ranks of a group have the same rows and weights, and each a part of the positions.

    rank r of c    positions r s / c to (r + 1) s / c of rows of s tokens
    its attention  all s positions, 1 / c of the heads that the rank has: three all-to-alls before it, one after it

Everything else in a layer works on each position alone. Megatron's local attention has no context parallelism. That of
TransformerEngine has its own, which is not used: either one is built as for one rank that has fewer heads.

Source: Jacobs et al. 2023, "DeepSpeed Ulysses" (2309.14509).
Differences: 1. Positions are in order. Megatron gives each rank one chunk from each half of a row, so that a ring of
causal attention has even work; here every rank computes the attention of whole rows. 2. Key and value heads that c does
not divide are repeated, as often as it takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from purerl.backends.megatron.mesh import Groups

if TYPE_CHECKING:
    from megatron.core.models.gpt import GPTModel
    from megatron.core.transformer import TransformerConfig
    from torch.distributed import ProcessGroup

# pyright: reportMissingImports=false

__all__ = ["own_positions", "split_angles", "split_attention"]


def own_positions(values: Tensor, group: ProcessGroup) -> Tensor:
    """The part of this rank of `values` [rows, time], whose columns the ranks of `group` divide."""
    return values.chunk(group.size(), 1)[group.rank()]


def split_angles(model: GPTModel, group: ProcessGroup) -> None:
    """Let the rotary embedding of `model` be that of the positions of this rank."""
    embedding: Any = model.rotary_pos_emb
    embedding.forward = partial(_own_angles, embedding.forward, group)


def _own_angles(forward: Callable[..., Tensor], group: ProcessGroup, length: int, **options: Any) -> Tensor:
    """The angles [positions of this rank, 1, 1, width]; `packed_seq` is Megatron's word for those of all positions."""
    return forward(length, packed_seq=True).chunk(group.size())[group.rank()]


def split_attention(attention: Callable[..., Any], groups: Groups) -> Callable[..., Any]:
    """A builder of an `attention` of Megatron whose heads the context ranks divide, with the same arguments."""
    return partial(_build, attention, groups)


def _build(attention: Callable[..., Any], groups: Groups, *, config: TransformerConfig, **options: Any) -> Any:
    own, size = copy(config), groups.context.size()
    copies = size // math.gcd(size, config.num_query_groups // groups.tensor.size())
    own.context_parallel_size = 1
    own.num_attention_heads = config.num_attention_heads // size
    own.num_query_groups = config.num_query_groups * copies // size
    module = attention(config=own, **options)
    module.forward = partial(_attend, module.forward, groups.context, copies)
    return module


def _attend(
    forward: Callable[..., Tensor],
    group: ProcessGroup,
    copies: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *arguments: Any,
    **options: Any,
) -> Tensor:
    """[positions of this rank, rows, heads * width] the attended values.

    query       [positions of this rank, rows, heads, width]; key and value with fewer heads
    forward     the attention to all positions, with a part of the heads
    copies      how often key and value heads are repeated
    """
    key, value = (_repeated(each, copies) for each in (key, value))
    query, key, value = (_to_heads(each, group) for each in (query, key, value))
    return _to_positions(forward(query, key, value, *arguments, **options), group)


def _repeated(x: Tensor, copies: int) -> Tensor:
    """`x` [positions, rows, heads, width] with `copies` of each head one after the other."""
    return x if copies == 1 else x.repeat_interleave(copies, 2)


def _to_heads(x: Tensor, group: ProcessGroup) -> Tensor:
    """From [positions of this rank, rows, heads, width] to [positions, rows, heads of this rank, width]."""
    return _exchange(x.unflatten(2, (group.size(), -1)).movedim(2, 0), group).flatten(0, 1)


def _to_positions(x: Tensor, group: ProcessGroup) -> Tensor:
    """From [positions, rows, width of the heads of this rank] to [positions of this rank, rows, width of all heads]."""
    return _exchange(x.unflatten(0, (group.size(), -1)), group).movedim(0, 2).flatten(2)


def _exchange(parts: Tensor, group: ProcessGroup) -> Tensor:
    """Part k of `parts` goes to rank k, and one comes from each rank."""
    from megatron.core.tensor_parallel import all_to_all

    return all_to_all(group, parts)
