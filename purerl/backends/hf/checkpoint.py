"""What a trainer writes and reads: weights as safetensors, its optimiser's state as torch.save writes it.

Every file is on the disk when `write` returns, so that whoever commits a checkpoint can rely on it.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from purerl.errors import CheckpointError

__all__ = ["read", "sync_files", "write"]

_WEIGHTS, _STATE = "weights.safetensors", "state.pt"
_SHOWN = 5


def write(path: Path, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write `weights` and `state` into the directory `path`. Raises CheckpointError or OSError where that fails."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file({name: weight.cpu().contiguous() for name, weight in weights.items()}, path / _WEIGHTS)
        torch.save(state, path / _STATE)
    except (SafetensorError, RuntimeError) as error:
        raise CheckpointError(f"a checkpoint cannot be written into {str(path)!r}", got=str(error)) from error
    sync_files(path)


def read(path: Path, like: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights and the state that `write` wrote, weights as `like`: same names, shapes and dtypes.

    Raises: CheckpointError where a file is missing or damaged, or where it is the checkpoint of another model.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights = load_file(path / _WEIGHTS)
        state = torch.load(path / _STATE, map_location="cpu", weights_only=True)
    except (OSError, SafetensorError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        need = f"{_WEIGHTS} and {_STATE}, as they were written"
        raise CheckpointError(f"no checkpoint can be read from {str(path)!r}", got=str(error), need=need) from error
    there, here = ({name: _kind(tensor) for name, tensor in some.items()} for some in (weights, like))
    pairs = {name: (there.get(name, "missing"), here.get(name, "missing")) for name in sorted({*there, *here})}
    differing = [f"{name} is {saved} there, {own} here" for name, (saved, own) in pairs.items() if saved != own]
    if differing:
        more = [f"and {len(differing) - _SHOWN} more"] if len(differing) > _SHOWN else []
        got = "; ".join(differing[:_SHOWN] + more)
        raise CheckpointError(f"{str(path)!r} is a checkpoint of another model", got=got, do="load it into that model")
    return weights, state


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def sync_files(path: Path) -> None:
    """Have every file in the directory `path` on the disk before anything else is done."""
    for file in path.iterdir():
        if file.is_file():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
