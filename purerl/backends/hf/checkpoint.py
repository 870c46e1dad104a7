"""What a trainer writes and reads: weights as safetensors, the optimizer's state by torch.save."""

from __future__ import annotations

import errno
import json
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from purerl.digests import DigestWriter
from purerl.errors import CheckpointError

__all__ = ["check_fit", "os_errors", "read", "write"]

_WEIGHTS, _STATE = "weights.safetensors", "state.pt"
_MAX_SHOWN = 5


def write(path: Path, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> dict[str, str]:
    """Write `weights` and `state` into the directory `path`; return the digest of each file, by its name.

    Digests are those of the data in memory: no data are read from the disk.

    Raises: OSError if a file cannot be written.
    """
    from safetensors.torch import save_file

    weights = {name: weight.cpu().contiguous() for name, weight in weights.items()}
    with os_errors(), (path / _STATE).open("wb") as file:  # given a path, torch would not say why it cannot write
        save_file(weights, path / _WEIGHTS)
        writer = DigestWriter(file)
        torch.save(state, writer)  # pyright: ignore[reportArgumentType] - it needs only write and flush
    return {_WEIGHTS: _digest_of_weights(path / _WEIGHTS, weights), _STATE: writer.digest}


def _digest_of_weights(path: Path, weights: Mapping[str, Tensor]) -> str:
    """The digest of the safetensors file at `path` with `weights`, of which only the header is read."""
    writer = DigestWriter()
    with path.open("rb") as file:
        writer.write(length := file.read(8))
        writer.write(header := file.read(int.from_bytes(length, "little")))
    layout = {name: entry["data_offsets"] for name, entry in json.loads(header).items() if name in weights}
    for name in sorted(layout, key=layout.__getitem__):
        writer.write(weights[name].flatten().view(torch.uint8).numpy())
    return writer.digest


@contextmanager
def os_errors() -> Iterator[None]:
    """Raise OSError if safetensors or torch cannot write inside the block; they raise other errors."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error)) from error
    except RuntimeError as error:  # torch also closes its archive, which fails too if the disk is full
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights and the state that `write` wrote. Raises CheckpointError if a file is missing or damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights = load_file(path / _WEIGHTS)
        state = torch.load(path / _STATE, map_location="cpu", weights_only=True)
    except (OSError, SafetensorError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        need = f"{_WEIGHTS} and {_STATE}, as they were written"
        raise CheckpointError(f"no checkpoint can be read from {str(path)!r}", got=str(error), need=need) from error
    return weights, state


def check_fit(path: Path, weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError if `weights`, read from `path`, differ from `expected` in names, shapes or dtypes."""
    saved, needed = ({name: _kind(tensor) for name, tensor in tensors.items()} for tensors in (weights, expected))
    pairs = {name: (saved.get(name, "missing"), needed.get(name, "missing")) for name in sorted({*saved, *needed})}
    differences = [
        f"{name} is {got} in the checkpoint and {need} in the model"
        for name, (got, need) in pairs.items()
        if got != need
    ]
    if differences:
        more = [f"and {len(differences) - _MAX_SHOWN} more"] if len(differences) > _MAX_SHOWN else []
        raise CheckpointError(
            f"{str(path)!r} is a checkpoint of another model",
            got="; ".join(differences[:_MAX_SHOWN] + more),
            need="the names, shapes and dtypes of the model that is loaded",
            do="load it into the model that it was saved from",
        )


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
