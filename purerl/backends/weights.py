"""Weights by name: a `Weights` of tensors, and copying weights into a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from purerl.errors import EngineError, nearest
from purerl.protocols import Capabilities, Weights

__all__ = ["TensorWeights", "check_adapter", "check_shapes", "copy_weights", "in_buckets"]


@frozen
class TensorWeights:
    """The `Weights` in `tensors`, none of which is sharded."""

    tensors: Mapping[str, Tensor]
    adapter: Mapping[str, Any] | None = None

    @property
    def metadata(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        return {name: (tuple(value.shape), value.dtype) for name, value in self.tensors.items()}

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return iter(self.tensors.items())


def check_adapter(weights: Weights, capabilities: Capabilities) -> None:
    """Raise EngineError if `weights` belong to an adapter and the engine cannot use one."""
    if weights.adapter is not None and not capabilities.adapters:
        need = "the weights of the model itself: this engine does not support adapters"
        raise EngineError("weights of an adapter", got=dict(weights.adapter), need=need, do="merge the adapter first")


def check_shapes(weights: Weights, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise EngineError for a name or a shape in `weights` that is not among the `shapes` of an engine's model."""
    for name, (shape, _) in weights.metadata.items():
        if name not in shapes:
            need = "a name that the engine's model has"
            raise EngineError(f"unknown weight {name!r}", need=need, do=nearest(name, shapes))
        if shapes[name] != tuple(shape):
            need = f"{list(shapes[name])}, the shape in the engine's model"
            raise EngineError(f"weight {name!r}", got=f"shape {list(shape)}", need=need)


def copy_weights(weights: Weights, own: Mapping[str, Tensor], *, mix: float = 1.0) -> None:
    """own[name] = (1 - mix) * own[name] + mix * value, in place, for each (name, value) of `weights`.

    Weights of `own` that are not in `weights` keep their values. A tied weight, which is one tensor under several names
    of `own`, may appear under each of these names in `weights`; it is mixed once. A sharded tensor takes its shard of
    the value.

    Raises: EngineError for a name or a shape that `own` does not have; nothing has been copied then.
    """
    check_shapes(weights, {name: tuple(value.shape) for name, value in own.items()})
    copied: set[int] = set()
    for name, value in weights:
        if id(own[name]) in copied:
            continue
        copied.add(id(own[name]))
        target = own[name].detach()
        value = _shard_like(value.detach(), target)
        if mix == 1.0:
            target.copy_(value)
        else:
            target.lerp_(value.to(target), mix)


def _shard_like(value: Tensor, target: Tensor) -> Tensor:
    """The part of the full tensor `value` in a tensor like `target`: its shard if `target` is sharded, or all."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(target, DTensor):
        return value
    return distribute_tensor(value.to(target.device), target.device_mesh, target.placements, src_data_rank=None)


def in_buckets(weights: Iterable[tuple[str, Tensor]], size: int) -> Iterator[dict[str, Tensor]]:
    """Copies of `weights` in the memory of the host, in buckets of at most `size` bytes, or of one larger tensor."""
    bucket, used = dict[str, Tensor](), 0
    for name, value in weights:
        if bucket and used + value.nbytes > size:
            yield bucket
            bucket, used = {}, 0
        bucket[name] = value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        used += value.nbytes
    if bucket:
        yield bucket
