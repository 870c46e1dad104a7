"""Whether kernels for accelerators can be used, and the precision of products on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from purerl.system.devices.cuda import runs_triton

__all__ = ["tf32_products", "uses_triton"]


def uses_triton(tensor: torch.Tensor) -> bool:
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


@contextmanager
def tf32_products(device: torch.device, *, enabled: bool) -> Iterator[None]:
    """Let `device`, unless it is a CPU, compute products of float32 tensors in TF32.

    This is a setting of torch. It is left as it is if it is not "highest", torch's default.

    In mixed precision these are the products of the output head. Its gradients may be computed in TF32, because TF32
    has more bits than bfloat16, in which all other gradients are computed.
    """
    if device.type == "cpu" or not enabled:
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if before == "highest" else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
