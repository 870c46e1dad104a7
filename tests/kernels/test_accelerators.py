"""The precision of products on accelerators."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch

from purerl.kernels.accelerators import tf32_products


@pytest.mark.parametrize(
    ("before", "device", "enabled", "inside"),
    [
        ("highest", "meta", True, "high"),
        ("highest", "meta", False, "highest"),
        ("highest", "cpu", True, "highest"),
        ("medium", "meta", True, "medium"),
    ],
)
def test_precision_inside_and_after_an_exception(before: str, device: str, enabled: bool, inside: str) -> None:
    default = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(before)
    try:
        seen = []
        with suppress(ZeroDivisionError), tf32_products(torch.device(device), enabled=enabled):
            seen.append(torch.get_float32_matmul_precision())
            raise ZeroDivisionError
        assert seen == [inside]
        assert torch.get_float32_matmul_precision() == before
    finally:
        torch.set_float32_matmul_precision(default)
