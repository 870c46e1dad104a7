"""Peak memory of this process, and of its device."""

from __future__ import annotations

import resource
import sys

__all__ = ["peak_memory"]


def peak_memory() -> dict[str, int]:
    """Bytes since the start of this process, by metric.

    peak_process_memory  most main memory that was resident at a time, with all libraries; of worker processes nothing
    peak_device_memory   most memory of tensors on the accelerator at a time; only if it is used and torch counts it
    """
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage counts in bytes on macOS, and in KiB elsewhere
    peaks = {"peak_process_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    from purerl.system.devices.accelerator import peak_device_memory

    on_device = peak_device_memory()
    return peaks if on_device is None else {**peaks, "peak_device_memory": on_device}
