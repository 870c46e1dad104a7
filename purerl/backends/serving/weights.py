"""The weights of servers: a stream, or files in a directory, in the memory of this host if they fit there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from purerl.backends.hf.lora import CONFIG_FILE, WEIGHTS_FILE
from purerl.backends.transfer.engine.purerl_messages import Address
from purerl.backends.weights import in_buckets
from purerl.errors import EngineError, nearest
from purerl.protocols import Weights
from purerl.system.private_files import private_folder

__all__ = ["NO_RECEIVER", "WeightFiles", "WeightStream", "WeightsDirectory", "check_names", "write_weights"]

NO_RECEIVER = "a server that cannot receive weights: purerl did not start it. Set server.weight_transfer=directory"
"""The problem of a server in which purerl's receiver is not loaded."""

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a directory of its own is made in it
_RESERVE = 1.1  # share of the weights that must be free
_MAX_FILE = 2**30  # bytes


class WeightFiles(NamedTuple):
    """Weights of `version` in `directory`; those of an adapter in peft's format if `is_adapter`."""

    directory: Path
    version: int
    is_adapter: bool

    @property
    def name(self) -> str:
        """A name that no earlier weights of the same generator have had."""
        return self.directory.name


class WeightStream(NamedTuple):
    """Weights of `version`, which the processes of a server receive at `address`."""

    address: Address
    version: int


class WeightsDirectory:
    """A new directory `path` for weights of `size` bytes, below `parent` or where there is room, until `close`.

    Those beside it whose processes were killed are removed, see `private_folder`.
    """

    def __init__(self, parent: str | None, size: int) -> None:
        folder = None if parent is None else Path(parent)
        memory = _SHARED_MEMORY
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        elif memory.is_dir() and shutil.disk_usage(memory).free >= 2 * _RESERVE * size:
            folder = memory
        self._stack = ExitStack()
        self.path = self._stack.enter_context(private_folder("purerl-weights-", folder))
        if parent is not None:
            self.path.chmod(0o755)  # a server of another user may read it

    def close(self) -> None:
        """Remove it with everything in it."""
        self._stack.close()


def check_names(weights: Weights, model: Mapping[str, tuple[int, ...]], *, is_complete: bool) -> None:
    """Raise EngineError for no weights, and for a name or a shape that `model`, the shapes by name, does not have.

    With `is_complete` also for names that are missing, because the servers have discarded all weights.
    """
    if not weights.metadata:
        need = "those of the model, or of at least one layer of an adapter"
        raise EngineError("weights", got="no weights", need=need)
    if is_complete and (missing := model.keys() - weights.metadata.keys()):
        got = f"no {min(missing)!r}, and {len(missing) - 1} others are missing"
        need, do = "all weights of the model (server.sleep_level=2)", "set server.sleep_level=1"
        raise EngineError("the weights for the servers", got=got, need=need, do=do)
    if weights.adapter is not None:
        return
    unknown = [name for name in weights.metadata if name not in model]
    if unknown:
        got = f"{len(unknown)} of {len(weights.metadata)} names that the server's model does not have"
        raise EngineError(f"unknown weight {unknown[0]!r}", got=got, do=nearest(unknown[0], model))
    for name, (shape, _) in weights.metadata.items():
        if tuple(shape) != tuple(model[name]):
            need = f"{list(model[name])}, the shape in the server's model"
            raise EngineError(f"weight {name!r}", got=f"shape {list(shape)}", need=need)


def write_weights(weights: Weights, directory: Path, version: int) -> WeightFiles:
    """Write all of `weights` into the new directory `directory`. Collective, as the iteration of `weights`.

    At most 1 GiB, or one tensor, is copied at a time.
    """
    directory.mkdir()
    if weights.adapter is not None:
        _save({name: value.detach().cpu().contiguous() for name, value in weights}, directory / WEIGHTS_FILE)
        (directory / CONFIG_FILE).write_text(json.dumps(dict(weights.adapter), indent=2, sort_keys=True))
        return WeightFiles(directory, version, is_adapter=True)
    index: dict[str, str] = {}
    for number, bucket in enumerate(in_buckets(weights, _MAX_FILE)):
        name = f"model-{number:05d}.safetensors"
        _save(bucket, directory / name)
        index |= dict.fromkeys(bucket, name)
    table = {"metadata": {"total_size": sum(file.stat().st_size for file in directory.iterdir())}, "weight_map": index}
    (directory / "model.safetensors.index.json").write_text(json.dumps(table))
    return WeightFiles(directory, version, is_adapter=False)


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    from safetensors.torch import save_file

    save_file(dict(tensors), path, metadata={"format": "pt"})
    path.chmod(0o644)  # a server of another user may read it
