"""From the shards of a model to full tensors, for every mesh of `mesh.py`.

A tensor may be split twice: tensor parallelism splits it along any axis, and FSDP2 splits the result along the first
axis. Both are undone in the opposite order, each by one collective call for all tensors of a bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch import distributed as dist

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

__all__ = ["BUCKET", "Split", "full_tensors", "split_of"]

BUCKET = 2**28
"""Bytes of tensors that are gathered at a time; a larger tensor is alone in its bucket."""


def full_tensors(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """(name, full tensor) of each of `tensors`. Collective for sharded ones: every rank iterates to the end.

    Sharded tensors are gathered in buckets of 256 MiB, with one or two collective calls each.
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
    size = sum(member.nbytes for member in (*bucket, tensor))
    return tensor.dtype == bucket[0].dtype and size <= BUCKET


def _gathered(bucket: Mapping[str, DTensor]) -> Iterator[tuple[str, Tensor]]:
    """The full tensors of a bucket, whose members have one dtype."""
    parts = {name: tensor.to_local().detach() for name, tensor in bucket.items()}
    for axis_name in ("shard", "tensor"):
        splits = {name: split for name, tensor in bucket.items() if (split := split_of(tensor, axis_name)) is not None}
        parts |= _undo(splits, {name: parts[name] for name in splits})
    for name in bucket:
        yield name, parts.pop(name)


class Split:
    """The split of a tensor over the ranks of `mesh`: chunks along `axis`, or of each of `groups` of that axis."""

    def __init__(self, mesh: DeviceMesh, placement: Any, shape: Sequence[int]) -> None:
        self.mesh, self.axis = mesh, placement.dim % len(shape)
        self.groups = getattr(placement, "split_factor", 1)
        self.length = shape[self.axis] // self.groups
        self.chunk = -(-self.length // mesh.size())

    def padded(self, part: Tensor) -> Tensor:
        """[groups, chunk, ...]: the part of this rank, with as many rows as that of any rank."""
        rows = part.movedim(self.axis, 0).unflatten(0, (self.groups, -1))
        padding = rows.new_zeros(self.groups, self.chunk - rows.shape[1], *rows.shape[2:])
        return torch.cat((rows, padding), 1)

    @property
    def segments(self) -> list[tuple[int, int]]:
        """The rows of this rank in the whole: (start, length) of each piece, in their order on this rank."""
        start = min(self.chunk * self.mesh.get_local_rank(), self.length)
        rows = min(self.chunk, self.length - start)
        return [(group * self.length + start, rows) for group in range(self.groups)]

    def joined(self, parts: Tensor) -> Tensor:
        """The whole from [ranks, groups, chunk, ...]."""
        rows = parts.movedim(0, 1).flatten(1, 2)[:, : self.length]
        return rows.flatten(0, 1).movedim(0, self.axis).clone(memory_format=torch.contiguous_format)


def split_of(tensor: DTensor, name: str) -> Split | None:
    """The split of `tensor` over the dimension `name` of its mesh; None if it has none."""
    names = tensor.device_mesh.mesh_dim_names or ()
    if name not in names:
        return None
    placement = tensor.placements[names.index(name)]
    if not hasattr(placement, "dim"):
        return None
    mesh, shape = tensor.device_mesh[name], list(tensor.shape)
    if name == "tensor":
        return Split(mesh, placement, shape)
    # FSDP2 splits what tensor parallelism has left to this rank, along the first axis.
    of_matrices = split_of(tensor, "tensor")
    if of_matrices is not None and of_matrices.axis == 0:
        shape[0] = sum(rows for _, rows in of_matrices.segments)
    from torch.distributed.tensor import Shard

    return Split(mesh, Shard(0), shape)


def _undo(splits: Mapping[str, Split], parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`parts` with what all ranks of the mesh of `splits` hold of them; one collective call."""
    if not splits:
        return {}
    mesh = next(iter(splits.values())).mesh
    padded = {name: split.padded(parts[name]) for name, split in splits.items()}
    flat = torch.cat([part.flatten() for part in padded.values()])
    gathered = flat.new_empty(mesh.size(), flat.numel())
    dist.all_gather([*gathered], flat, group=mesh.get_group())
    columns = gathered.split([part.numel() for part in padded.values()], dim=1)
    shapes = [(mesh.size(), *part.shape) for part in padded.values()]
    return {
        name: split.joined(column.reshape(shape))
        for (name, split), column, shape in zip(splits.items(), columns, shapes, strict=True)
    }
