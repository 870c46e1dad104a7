"""From the shards of a model to full tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch import distributed as dist

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = ["full_tensors"]

_BUCKET = 2**28  # bytes


def full_tensors(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """(name, full tensor) of each of `tensors`. Collective for sharded ones: every rank iterates to the end.

    Tensors that are sharded along their first axis are gathered in buckets of 256 MiB, with one collective call each.
    """
    from torch.distributed.tensor import DTensor

    bucket: dict[str, DTensor] = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, DTensor):
            yield from _gathered(bucket)
            bucket = {}
            yield name, tensor
            continue
        if bucket and not _fits(tensor, list(bucket.values())):
            yield from _gathered(bucket)
            bucket = {}
        bucket[name] = tensor
    yield from _gathered(bucket)


def _fits(tensor: DTensor, bucket: Sequence[DTensor]) -> bool:
    first, size = bucket[0], sum(member.numel() * member.element_size() for member in (*bucket, tensor))
    fits = (tensor.dtype, tensor.device_mesh, tensor.placements) == (first.dtype, first.device_mesh, first.placements)
    return fits and size <= _BUCKET


def _gathered(bucket: Mapping[str, DTensor]) -> Iterator[tuple[str, Tensor]]:
    """The full tensors of a bucket, whose members have one dtype, one mesh and the same placements."""
    if not bucket:
        return
    from torch.distributed.tensor import Shard

    first, *_ = bucket.values()
    if first.device_mesh.ndim > 1 or first.placements != (Shard(0),):
        yield from ((name, tensor.full_tensor()) for name, tensor in bucket.items())
        return
    ranks = first.device_mesh.size()
    shards = [_padded_shard(tensor, ranks) for tensor in bucket.values()]
    flat = torch.cat([shard.flatten() for shard in shards])
    gathered = flat.new_empty(ranks * flat.numel())
    dist.all_gather_into_tensor(gathered, flat, group=first.device_mesh.get_group())
    columns = gathered.view(ranks, -1).split([shard.numel() for shard in shards], dim=1)
    for (name, tensor), shard, column in zip(bucket.items(), shards, columns, strict=True):
        yield name, column.reshape(ranks * shard.shape[0], *shard.shape[1:])[: tensor.shape[0]]


def _padded_shard(tensor: DTensor, ranks: int) -> Tensor:
    """This rank's rows of `tensor`, as many as any rank has."""
    local, shard_rows = tensor.to_local().detach(), -(-tensor.shape[0] // ranks)
    return torch.cat((local, local.new_zeros(shard_rows - local.shape[0], *tensor.shape[1:]))) if ranks > 1 else local
