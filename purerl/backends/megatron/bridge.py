"""Weights between Hugging Face's files and the parameters of Megatron-core on all ranks.

Reading: each rank reads the tensors of its own layers and experts from the safetensors files, one after the other, and
copies its part of each. Writing: the parts of consecutive tensors are gathered in buckets, from the ranks that have
them to all ranks. No rank holds more than one tensor of a file, or one bucket, beside its own parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from purerl.backends.megatron.files import WeightFiles
from purerl.backends.megatron.mesh import Groups
from purerl.backends.megatron.names import Weight
from purerl.backends.weights import check_shapes
from purerl.errors import EngineError
from purerl.protocols import Weights

__all__ = ["BUCKET", "Bridge"]

BUCKET = 2**28
"""Bytes of tensors that are gathered at a time; a larger tensor is alone in its bucket."""


class _Home(NamedTuple):
    """The ranks that have a tensor: a stage of the pipeline, and a rank of its expert group, or all of them."""

    stage: int
    expert: int | None


class Bridge:
    """The tensors of `table` and the `parameters` of this rank that contain them, by the names in `table`.

    Raises: EngineError if a parameter of this rank has no place in the table, except those in `others`.
    """

    adapter: Mapping[str, Any] | None = None

    def __init__(
        self,
        table: Sequence[Weight],
        parameters: Mapping[str, Tensor],
        groups: Groups,
        *,
        layers: int,
        experts: int,
        dtype: torch.dtype,
    ) -> None:
        self._groups, self._dtype, self._parameters = groups, dtype, parameters
        self._per_stage = layers // groups.pipeline.size()
        self._per_expert_rank = max(1, experts // groups.expert.size())
        self._table = tuple(weight for weight in table if not weight.is_copy)
        self._own = tuple(weight for weight in table if weight.parameter in parameters)
        unknown = parameters.keys() - {weight.parameter for weight in self._own}
        if unknown:
            need = "the names in purerl.backends.megatron.names"
            raise EngineError("unknown parameters of megatron-core", got=", ".join(sorted(unknown)[:3]), need=need)

    # --- Weights -----------------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        return {weight.name: (weight.shape, self._dtype) for weight in self._table}

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return self.full_tensors(Tensor.detach)

    def full_tensors(self, of: Callable[[Any], Tensor]) -> Iterator[tuple[str, Tensor]]:
        """(name in the files, full tensor) of what `of` returns for the parameters, which is as large as each of them.

        Collective: every rank iterates to the end.
        """
        for home, weights in groupby(self._table, key=self._home):
            for bucket in self._buckets(weights):
                gathered = self._gathered(home, bucket, of)
                sizes = [weight.part_shape(self._tensor_group(home.expert).size()) for weight in bucket]
                columns = gathered.split([math.prod(size) for size in sizes], dim=1)
                for weight, size, column in zip(bucket, sizes, columns, strict=True):
                    yield weight.name, weight.whole(column.unflatten(1, size)).contiguous()

    def _home(self, weight: Weight) -> _Home:
        expert = None if weight.expert is None else weight.expert // self._per_expert_rank
        return _Home((weight.layer or 0) // self._per_stage, expert)

    def _tensor_group(self, expert: int | None) -> dist.ProcessGroup:
        """The ranks that split a tensor which belongs to an expert, or to none."""
        return self._groups.tensor if expert is None else self._groups.expert_tensor

    def _buckets(self, weights: Iterator[Weight]) -> Iterator[list[Weight]]:
        bucket, size = list[Weight](), 0
        for weight in weights:
            bytes_of_weight = math.prod(weight.shape) * self._dtype.itemsize
            if bucket and size + bytes_of_weight > BUCKET:
                yield bucket
                bucket, size = [], 0
            bucket.append(weight)
            size += bytes_of_weight
        yield bucket

    def _gathered(self, home: _Home, bucket: Sequence[Weight], of: Callable[[Any], Tensor]) -> Tensor:
        """[tensor ranks, n]: the flat parts of the tensors of a bucket, on every rank."""
        groups, split = self._groups, self._tensor_group(home.expert)
        size = sum(math.prod(weight.part_shape(split.size())) for weight in bucket)
        result = torch.empty(split.size(), size, dtype=self._dtype, device=groups.device)
        is_stage = home.stage == groups.pipeline.rank()
        if is_stage and home.expert in (None, groups.expert.rank()):
            own = [weight.view(of(self._parameters[weight.parameter])).reshape(-1) for weight in bucket]
            dist.all_gather(list(result), torch.cat(own).to(self._dtype), group=split)
        if is_stage and home.expert is not None:
            _broadcast(result, home.expert, groups.expert)
        _broadcast(result, home.stage, groups.pipeline)
        return result

    # --- reading -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def read(self, files: WeightFiles, new: Mapping[str, Tensor]) -> None:
        """Copy the tensors of this rank from `new`, by their names, and the others from `files`.

        Raises: ConfigError if one is missing or has another shape.
        """
        for name, weights in groupby(sorted(self._own, key=lambda weight: weight.name), key=lambda weight: weight.name):
            weights = list(weights)
            value = new[name] if name in new else files.read(name, weights[0].shape)
            self._copy(weights, value, mix=1.0)

    @torch.no_grad()
    def copy(self, weights: Weights, *, mix: float) -> None:
        """Copy: own = (1 - mix) * own + mix * value, for each (name, value) of `weights`; others keep their values.

        A tied output head may also be among `weights`, with the values of the embedding. Every rank iterates `weights`.

        Raises: EngineError for a name or a shape that the model does not have; nothing has been copied then.
        """
        shapes = {weight.name: weight.shape for weight in self._table}
        aliases = {} if "lm_head.weight" in shapes else {"lm_head.weight": shapes["model.embed_tokens.weight"]}
        check_shapes(weights, shapes | aliases)
        own: dict[str, list[Weight]] = {}
        for weight in self._own:
            own.setdefault(weight.name, []).append(weight)
        for name, value in weights:
            self._copy(own.get(name, ()), value, mix=mix)

    def _copy(self, weights: Sequence[Weight], value: Tensor, *, mix: float) -> None:
        """Copy the part that this rank has of `value` into each parameter that contains it."""
        for weight in weights:
            split = self._tensor_group(weight.expert)
            target = weight.view(self._parameters[weight.parameter].detach())
            part = weight.part(value, split.rank(), split.size()).reshape(target.shape).to(target)
            if mix == 1.0:
                target.copy_(part)
            else:
                target.lerp_(part, mix)


def _broadcast(tensor: Tensor, source: int, group: dist.ProcessGroup) -> None:
    """Send `tensor` from the rank `source` of `group` to its other ranks."""
    if group.size() > 1:
        dist.broadcast(tensor, group=group, group_src=source)
