"""The parts of a tensor that this rank holds, for every mesh of `mesh.py`.

Checkpoints consist of such parts. torch.distributed.checkpoint would describe a tensor that is split over ranks by one
box. A packed matrix, such as the gate and the up projection of experts in one tensor, is split within each of its
parts: a rank then holds several boxes of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, product
from typing import NamedTuple

from torch import Tensor
from torch.distributed.tensor import DTensor

from purerl.backends.hf.weights.gather import Split, split_of

__all__ = ["Chunk", "chunks_of"]

Segment = tuple[int, int]


class Chunk(NamedTuple):
    """A box of a tensor: the index of its first element in the whole tensor, and its values, which are a view."""

    offsets: tuple[int, ...]
    values: Tensor


def chunks_of(tensor: Tensor) -> list[Chunk]:
    """The boxes of `tensor` on this rank: one if it is not split, none if nothing of it is here."""
    if not isinstance(tensor, DTensor):
        return [Chunk((0,) * tensor.ndim, tensor)]
    local = tensor.to_local()
    axes: list[list[Segment]] = [[(0, size)] for size in tensor.shape]
    if (split := split_of(tensor, "tensor")) is not None:
        axes[split.axis] = split.segments
    if (split := split_of(tensor, "shard")) is not None:
        axes[0] = _part(axes[0], split)
    placed = [list(zip(accumulate((n for _, n in axis), initial=0), axis, strict=False)) for axis in axes]
    return [_chunk(local, box) for box in product(*placed) if all(length for _, (_, length) in box)]


def _part(segments: Sequence[Segment], split: Split) -> list[Segment]:
    """The part of the rows in `segments` that this rank has with `split`."""
    ((start, rows),) = split.segments
    part: list[Segment] = []
    for first, length in segments:
        taken = max(0, min(length, start + rows) - max(0, start))
        part.append((first + max(0, start), taken))
        start -= length
    return [segment for segment in part if segment[1]]


def _chunk(local: Tensor, box: Sequence[tuple[int, Segment]]) -> Chunk:
    """The chunk at `box`: for each axis, where it begins on this rank, and where it is in the whole."""
    for axis, (here, (_, length)) in enumerate(box):
        local = local.narrow(axis, here, length)
    return Chunk(tuple(start for _, (start, _) in box), local)
