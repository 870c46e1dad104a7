"""The tensors in a checkpoint of the Hugging Face trainer."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from purerl.backends.hf.weights.checkpoint import ShardFiles

__all__ = ["FILES", "saved_tensors"]

FILES = {".metadata", "__0_0.distcp"}
"""The names of the files that one process writes."""


def saved_tensors(path: Path, prefix: str = "") -> dict[str, Tensor]:
    """The full tensors in the directory `path` whose names begin with `prefix`, which is left out."""
    files = ShardFiles(path)
    kinds = {name: kind for name, kind in files.kinds.items() if name.startswith(prefix)}
    tensors = {name: torch.zeros(shape, dtype=dtype) for name, (dtype, shape) in kinds.items()}
    files.read(tensors)
    return {name.removeprefix(prefix): value for name, value in tensors.items()}
