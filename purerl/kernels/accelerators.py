"""Whether kernels for accelerators can be used."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from purerl.devices.cuda import runs_triton

__all__ = ["uses_triton"]


def uses_triton(tensor: Tensor) -> bool:
    """Whether Triton kernels compute with `tensor`: on devices that run them, if triton can be imported.

    Not while torch.compile traces the function, because the compiler fuses plain torch operations itself.
    """
    return runs_triton(tensor) and not torch.compiler.is_compiling() and _has_triton()


@cache
def _has_triton() -> bool:
    try:
        import triton  # noqa: F401 - whether it can be imported is the question
    except ImportError:
        return False
    return True
