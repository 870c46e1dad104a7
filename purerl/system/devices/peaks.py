"""Peak FLOP/s of devices: dense matrix products, as their makers state them.

    A100      https://www.nvidia.com/en-us/data-center/a100/
    H100      https://www.nvidia.com/en-us/data-center/h100/
    H200      https://www.nvidia.com/en-us/data-center/h200/
    B200      https://www.nvidia.com/en-us/data-center/hgx/ (a board of 8; the numbers here are those of one)
    L4        https://www.nvidia.com/en-us/data-center/l4/
    L40S      https://www.nvidia.com/en-us/data-center/l40s/
    A10       https://www.nvidia.com/en-us/data-center/products/a10-gpu/
    RTX 3090  https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.1.pdf
    RTX 4090  https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf
    MI300X    https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html

Where a page states numbers with sparsity, half of them is in the table. The RTX cards' numbers accumulate in float32.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

__all__ = ["PEAKS", "Peak", "Precision", "peak_flops"]

Precision = Literal["bfloat16", "tf32", "float32"]


class Peak(NamedTuple):
    """FLOP/s of dense matrix products, by precision of the factors."""

    bfloat16: float
    tf32: float
    float32: float


PEAKS: dict[str, Peak] = {
    r"H100 PCIe": Peak(756e12, 378e12, 51.2e12),
    r"H100 NVL": Peak(835e12, 417.5e12, 60e12),
    r"H100": Peak(989.4e12, 494.7e12, 66.9e12),
    r"H200 NVL": Peak(835e12, 417.5e12, 60e12),
    r"H200": Peak(989.4e12, 494.7e12, 66.9e12),
    r"B200": Peak(2250e12, 1125e12, 75e12),
    r"A100": Peak(312e12, 156e12, 19.5e12),
    r"L40S": Peak(362.05e12, 183e12, 91.6e12),
    r"L4": Peak(121e12, 60e12, 30.3e12),
    r"A10": Peak(125e12, 62.5e12, 31.2e12),
    r"RTX 4090": Peak(165.2e12, 82.6e12, 82.6e12),
    r"RTX 3090": Peak(71e12, 35.6e12, 35.6e12),
    r"MI300X": Peak(1307.4e12, 653.7e12, 163.4e12),
}
"""Peak of a device by a part of its name. The first entry that matches counts."""


def peak_flops(name: str, precision: Precision) -> float | None:
    """The peak of the device that torch calls `name`; None if it is not in the table.

    >>> peak_flops("NVIDIA A100-SXM4-80GB", "bfloat16")
    312000000000000.0
    >>> peak_flops("NVIDIA A10G", "bfloat16") is None
    True
    """
    peaks = (peak for pattern, peak in PEAKS.items() if re.search(rf"\b{pattern}(?!\w| Laptop)", name))
    found = next(peaks, None)
    return None if found is None else getattr(found, precision)
