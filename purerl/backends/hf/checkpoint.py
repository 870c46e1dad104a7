"""What a trainer writes and reads: weights as safetensors, its optimizer's state as torch.save writes it."""

from __future__ import annotations

import errno
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from purerl.errors import CheckpointError

__all__ = ["os_errors", "read", "write"]

_WEIGHTS, _STATE = "weights.safetensors", "state.pt"
_SHOWN = 5


def write(path: Path, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write `weights` and `state` into the directory `path`. Raises OSError where that fails."""
    from safetensors.torch import save_file

    with os_errors(), (path / _STATE).open("wb") as file:  # given a path, torch would not say why it cannot write
        save_file({name: weight.cpu().contiguous() for name, weight in weights.items()}, path / _WEIGHTS)
        torch.save(state, file)


@contextmanager
def os_errors() -> Iterator[None]:
    """Where safetensors or torch cannot write in the block, raise the OSError that they turn into another error."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error)) from error
    except RuntimeError as error:  # torch also closes its archive, which fails on a full disk too
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


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
        need, do = "the names, shapes and dtypes of the model that is loaded", "load it into the model that it is of"
        raise CheckpointError(f"{str(path)!r} is a checkpoint of another model", got=got, need=need, do=do)
    return weights, state


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
