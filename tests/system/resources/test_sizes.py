"""Sizes of memory as text, peaks of devices, and the memory of this process."""

from __future__ import annotations

import pytest

from purerl.errors import ConfigError
from purerl.system.devices.peaks import PEAKS, peak_flops
from purerl.system.memory_use import GIB, parse_bytes
from purerl.system.peak_memory import peak_memory


@pytest.mark.parametrize("text", ["80", "GiB", "-1GiB", "0MiB", "1.2.3GiB", "80XB", ""])
def test_a_size_without_number_or_unit_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="a number above 0 and a unit"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989.4e12),
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA L40S", 362.05e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12),
        ("AMD Instinct MI300X", 1307.4e12),
        ("NVIDIA L40", None),
        ("NVIDIA A10G", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("Tesla T4", None),
    ],
)
def test_devices_are_found_by_their_names_in_torch(name: str, peak: float | None) -> None:
    assert peak_flops(name, "bfloat16") == peak


def test_narrower_factors_are_never_slower() -> None:
    assert all(peak.bfloat16 > peak.tf32 >= peak.float32 for peak in PEAKS.values())


def test_peak_memory_of_this_process_is_plausible() -> None:
    assert GIB / 50 < peak_memory()["peak_process_memory"] < 100 * GIB
