"""A trainer's tensors in files, written and read by torch.distributed.checkpoint.

Every rank writes the parts that it holds, and reads those that it needs, so the ranks and the mesh may have changed in
between. A part that several ranks hold is written by one of them. Ranks exchange their plans before the first
checkpoint, and again only if other tensors are saved. With one process nothing is exchanged.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from purerl.backends.hf.weights.chunks import Chunk, chunks_of
from purerl.backends.hf.weights.shard_files import ShardReader, ShardWriter, os_errors
from purerl.errors import CheckpointError
from purerl.ranks import Ranks

__all__ = ["WEIGHTS", "Kind", "SavePlans", "ShardFiles", "StagedTensors", "kind_of"]

WEIGHTS = "weights."
"""Prefix of the names of weights. Messages leave it out."""

_MAX_SHOWN = 5

Kind = tuple[torch.dtype, tuple[int, ...]]


# --- writing -------------------------------------------------------------------------------------------------------


class _Plan(NamedTuple):
    """The chunks that this rank writes, and the metadata that rank 0 writes about the parts of all ranks."""

    own: SavePlan
    metadata: Metadata


class SavePlans:
    """Decides which of `ranks` writes which part of the tensors that are saved."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._names: tuple[str, ...] = ()
        self._plan: _Plan | None = None

    def stage(self, tensors: Mapping[str, Tensor], *, copy: bool) -> StagedTensors:
        """The parts of `tensors` that this rank writes; with `copy` as copies in the memory of the host. Collective."""
        chunks = {name: chunks_of(tensor) for name, tensor in tensors.items()}
        if self._plan is None or self._names != tuple(tensors):
            self._plan, self._names = self._agree(tensors, chunks), tuple(tensors)
        indices = {item.index for item in self._plan.own.items}
        held = {_index(name, chunk): chunk.values for name, own in chunks.items() for chunk in own}
        values = {index: _copied(value) if copy else value for index, value in held.items() if index in indices}
        return StagedTensors(self._plan, values)

    def _agree(self, tensors: Mapping[str, Tensor], chunks: Mapping[str, Sequence[Chunk]]) -> _Plan:
        items = [_write_item(name, tensors[name], chunk) for name, own in chunks.items() for chunk in own]
        plans = self._ranks.gather(SavePlan(items), "the parts of a checkpoint")
        plans, metadata = DefaultSavePlanner(flatten_state_dict=False).create_global_plan(plans)
        own = ShardWriter(Path()).prepare_global_plan(plans)[self._ranks.rank]
        return _Plan(own, metadata)


def _index(name: str, chunk: Chunk) -> MetadataIndex:
    return MetadataIndex(name, chunk.offsets)


def _write_item(name: str, tensor: Tensor, chunk: Chunk) -> WriteItem:
    data = TensorWriteData(
        chunk=ChunkStorageMetadata(torch.Size(chunk.offsets), chunk.values.size()),
        properties=TensorProperties(dtype=tensor.dtype),
        size=tensor.size(),
    )
    return WriteItem(_index(name, chunk), WriteItemType.SHARD, tensor_data=data)


def _copied(value: Tensor) -> Tensor:
    return value.to("cpu", copy=True, memory_format=torch.contiguous_format)


class StagedTensors(NamedTuple):
    """The parts that this rank writes."""

    plan: _Plan
    values: Mapping[MetadataIndex, Tensor]

    def write(self, path: Path, ranks: Ranks) -> dict[str, str]:
        """Write them into the directory `path`; return the digest of each file of this rank. All `ranks` call it.

        Raises: OSError on every rank if one of them cannot write.
        """
        writer, planner = ShardWriter(path), cast(Any, DefaultSavePlanner(flatten_state_dict=False))
        planner.lookup_object = lambda index: self.values[index].detach()

        def write_own() -> list[Any]:
            with os_errors():
                return writer.write_data(self.plan.own, planner).wait() if self.values else []

        results = ranks.on_all(write_own, f"writing {path.parent.name}/{path.name}")
        ranks.on_first(lambda: writer.finish(self.plan.metadata, results), f"completing {path.parent.name}/{path.name}")
        return writer.digests


# --- reading -------------------------------------------------------------------------------------------------------


class ShardFiles:
    """The files that `StagedTensors` wrote into the directory `path`. Nothing here is collective."""

    def __init__(self, path: Path) -> None:
        self._path, self._reader = path, ShardReader(path)

    @cached_property
    def _metadata(self) -> Metadata:
        try:
            metadata = self._reader.read_metadata()
            self._reader.set_up_storage_reader(metadata, is_coordinator=True)
        except Exception as error:  # what a damaged file raises depends on its bytes
            raise self._unreadable(error) from error
        return metadata

    @property
    def kinds(self) -> dict[str, Kind]:
        """The dtype and the shape of each tensor, by name. Raises CheckpointError if there are no files."""
        saved = self._metadata.state_dict_metadata
        tensors = {name: entry for name, entry in saved.items() if isinstance(entry, TensorStorageMetadata)}
        return {name: (entry.properties.dtype, tuple(entry.size)) for name, entry in tensors.items()}

    def read(self, targets: Mapping[str, Tensor]) -> None:
        """Fill `targets`, which are tensors of `kinds`, each with the part that this rank holds.

        Raises: CheckpointError if a file is missing or damaged.
        """
        saved, items, values = self._metadata.state_dict_metadata, [], {}
        for name, tensor in targets.items():
            own = chunks_of(tensor)
            values |= {_index(name, chunk): chunk.values for chunk in own}
            boxes = [ChunkStorageMetadata(torch.Size(chunk.offsets), chunk.values.size()) for chunk in own]
            items += create_read_items_for_chunk_list(name, saved[name], boxes)  # pyright: ignore[reportArgumentType]
        planner: Any = DefaultLoadPlanner()
        planner.lookup_tensor = values.__getitem__
        try:
            self._reader.read_data(LoadPlan(items), planner).wait()
        except (OSError, RuntimeError, EOFError, AssertionError, KeyError, pickle.UnpicklingError) as error:
            raise self._unreadable(error) from error

    def check_fit(self, expected: Mapping[str, Kind], ignored: tuple[str, ...] = ()) -> None:
        """Raise CheckpointError if the tensors differ from `expected` in names, shapes or dtypes.

        Those whose names begin with one of `ignored` may be there or not.
        """
        kinds = {name: kind for name, kind in self.kinds.items() if not name.startswith(ignored)}
        saved, needed = ({name: _text(kind) for name, kind in each.items()} for each in (kinds, expected))
        names = sorted({*saved, *needed}, key=lambda name: (not name.startswith(WEIGHTS), name))
        pairs = {name: (saved.get(name, "missing"), needed.get(name, "missing")) for name in names}
        differences = [
            f"{name.removeprefix(WEIGHTS)} is {got} in the checkpoint and {need} in the model"
            for name, (got, need) in pairs.items()
            if got != need
        ]
        if differences:
            more = [f"and {len(differences) - _MAX_SHOWN} more"] if len(differences) > _MAX_SHOWN else []
            raise CheckpointError(
                f"{str(self._path)!r} is a checkpoint of another model",
                got="; ".join(differences[:_MAX_SHOWN] + more),
                need="the names, shapes and dtypes of the model that is loaded",
                do="load it into the model that it was saved from",
            )

    def _unreadable(self, error: Exception) -> CheckpointError:
        need = "the files of all ranks, and .metadata, as they were written"
        return CheckpointError(f"no checkpoint can be read from {str(self._path)!r}", got=str(error), need=need)


def kind_of(tensor: Tensor) -> Kind:
    """The dtype and the shape of the whole `tensor`."""
    return tensor.dtype, tuple(tensor.shape)


def _text(kind: Kind) -> str:
    dtype, shape = kind
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"
