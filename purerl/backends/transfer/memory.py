"""Memory of the host for weights: of this process alone, or such that other processes of the host can read it."""

from __future__ import annotations

import os
import weakref

import torch
from torch import Tensor

__all__ = ["Memory"]


class Memory:
    """`data`, of dtype uint8 with `size` bytes.

    path  with `is_shared`, a file with which any process of the same user and host reads the same memory, as long as
          this object exists; otherwise None

    Shared memory has no name in a file system: it needs no room in ``/dev/shm``, and nothing remains after SIGKILL.
    It exists on Linux only.
    """

    def __init__(self, size: int, *, is_shared: bool) -> None:
        self.path: str | None = None
        if not is_shared:
            self.data: Tensor = torch.empty(size, dtype=torch.uint8)
            return
        file = os.memfd_create("purerl-weights")
        weakref.finalize(self, os.close, file)
        os.truncate(file, size)
        self.path = f"/proc/{os.getpid()}/fd/{file}"
        self.data = torch.from_file(self.path, shared=True, size=size, dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self.data)
