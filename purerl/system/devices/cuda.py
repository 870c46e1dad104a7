"""Features of torch that only devices called "cuda" have: those of NVIDIA, and those of AMD with ROCm."""

from __future__ import annotations

import torch

__all__ = ["has_tf32", "has_varlen_attention", "has_wide_products", "runs_triton"]

_AMPERE = (8, 0)
"""The lowest compute capability with TF32, and that torch's flash attention supports."""


def runs_triton(tensor: torch.Tensor) -> bool:
    """Whether the Triton kernels of purerl compute with `tensor`: on NVIDIA's devices, and on AMD's with ROCm."""
    return tensor.is_cuda


def has_varlen_attention(tensor: torch.Tensor) -> bool:
    """Whether torch's flash attention for rows of different lengths runs on the device of `tensor`."""
    return _is_ampere_or_later(tensor)


def has_wide_products(tensor: torch.Tensor) -> bool:
    """Whether the device of `tensor` returns the product of bfloat16 or float16 matrices in float32."""
    return tensor.is_cuda


def has_tf32(tensor: torch.Tensor) -> bool:
    """Whether the device of `tensor` multiplies numbers of 19 bits, TF32."""
    return _is_ampere_or_later(tensor)


def _is_ampere_or_later(tensor: torch.Tensor) -> bool:
    """On AMD's devices the numbers of a capability mean something else, so they count as earlier."""
    if not tensor.is_cuda or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(tensor.device) >= _AMPERE
