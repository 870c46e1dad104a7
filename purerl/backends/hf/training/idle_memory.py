"""Main memory that a trainer does not need until its next call."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from purerl.system.allocator import release_freed
from purerl.system.mapped_memory import release_mapped

__all__ = ["MIN_SIZE", "release_memory"]

MIN_SIZE = 2**27
"""Bytes of the smallest model whose parameters are released. Finding them in memory takes some milliseconds."""


def release_memory(device: torch.device, frozen: nn.Module | None = None) -> None:
    """Return freed memory to the system, and release the parameters of `frozen`, if `device` is a CPU.

    Released are parameters that are mapped from files and were never written. The next use reads them from the files
    again, which the system usually still has in memory. Those in another dtype than that of the files, or of which a
    rank has parts, are not mapped, and stay.
    """
    if device.type != "cpu":
        return
    release_freed()
    parameters = () if frozen is None else [p for p in frozen.parameters() if not isinstance(p, DTensor)]
    storages = [storage for p in parameters if (storage := p.untyped_storage()).device.type == "cpu"]
    if sum(storage.nbytes() for storage in storages) >= MIN_SIZE:
        release_mapped({storage.data_ptr() for storage in storages})
