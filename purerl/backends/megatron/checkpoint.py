"""Checkpoints by megatron.core.dist_checkpointing, which another mesh can resume from.

Each rank writes its parts of the tensors, and reads the parts that it needs, whatever ranks have written them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException

from purerl.backends.hf.weights.shard_files import ShardWriter, os_errors
from purerl.backends.megatron.optimizer_state import describe
from purerl.errors import CheckpointError

# pyright: reportMissingImports=false

__all__ = ["read", "read_counters", "write"]


def _state_of(model: Any | None, optimizer: Any | None, *, is_loading: bool) -> dict[str, Any]:
    """Megatron's description of the parts of this rank: of the model and of the optimizer, where they are given."""
    if model is None:
        return {}
    weights = model.sharded_state_dict()
    if optimizer is None:
        return {"model": weights}
    return {"model": weights, "optimizer": describe(optimizer, weights, is_loading=is_loading)}


def write(path: Path, model: Any | None, optimizer: Any | None, counters: Mapping[str, Any]) -> dict[str, str]:
    """Write what is given into the directory `path`; return digests of files of this rank. Collective.

    Raises: OSError if a file cannot be written.
    """
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

    state = {**_state_of(model, optimizer, is_loading=False), "counters": dict(counters)}
    strategy, writer = TorchDistSaveShardedStrategy("torch_dist", 1), ShardWriter(path)
    strategy.save = partial(_write_parts, writer)
    try:
        with os_errors():
            dist_checkpointing.save(state, str(path), strategy, validate_access_integrity=False)
    except (CheckpointException, dist_checkpointing.core.CheckpointingException) as error:
        raise OSError(_last_line(error)) from error
    return writer.digests


def _write_parts(writer: ShardWriter, parts: dict[str, Any], path: object) -> None:
    """Write the described `parts` of this rank in Megatron's format, in this process.

    Megatron's own function forks processes, and one that is forked beside threads, such as those of gloo, may hang.
    """
    from megatron.core.dist_checkpointing.strategies import torch as strategies
    from torch.distributed.checkpoint.state_dict_saver import save

    parts, *_ = strategies._replace_state_dict_keys_with_sharded_keys(parts, keep_only_main_replica=True)  # noqa: SLF001
    planner = strategies.MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False)
    tensors = strategies.mcore_to_pyt_state_dict(parts, is_loading=False)
    save(tensors, storage_writer=writer, planner=planner)


def read_counters(path: Path) -> dict[str, Any]:
    """The `counters` of `write`. Raises CheckpointError if `path` has no checkpoint."""
    from megatron.core import dist_checkpointing

    try:
        return dist_checkpointing.load_common_state_dict(str(path))["counters"]
    except _errors() as error:
        raise _refused(path, error) from error


def read(path: Path, model: Any, optimizer: Any | None) -> dict[str, Any]:
    """The states of the model and the optimizer in `path`, which have not changed. Collective.

    Raises: CheckpointError if the checkpoint is one of another model, or damaged.
    """
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.dict_utils import dict_list_map_inplace
    from megatron.core.dist_checkpointing.validation import StrictHandling

    state = _state_of(model, optimizer, is_loading=True)
    dict_list_map_inplace(_with_own_memory, state)
    try:
        return dist_checkpointing.load(state, str(path), strict=StrictHandling.RAISE_ALL)
    except _errors() as error:
        raise _refused(path, error) from error


def _errors() -> tuple[type[BaseException], ...]:
    """The errors of files that are missing, damaged or of another model. The first is no Exception."""
    from megatron.core.dist_checkpointing.core import CheckpointingException

    return CheckpointException, CheckpointingException, OSError, RuntimeError, KeyError, ValueError, EOFError


def _refused(path: Path, error: BaseException) -> CheckpointError:
    need = "the files of all ranks, written from the same model"
    return CheckpointError(f"{str(path)!r} cannot be loaded", got=_last_line(error), need=need)


def _last_line(error: BaseException) -> str:
    """The message of `error`; torch puts tracebacks of ranks before it."""
    return (str(error).strip().splitlines() or [repr(error)])[-1]


def _with_own_memory(value: Any) -> Any:
    """A part that is read into new memory, and not into the model."""
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory

    if isinstance(value, (ShardedTensor, ShardedTensorFactory)) and value.data is not None:
        value.data = torch.empty_like(value.data)
    return value
