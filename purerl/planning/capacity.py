"""The memory that a rank may use: that of its accelerator, or its part of the main memory."""

from __future__ import annotations

import os
from typing import Any

from attrs import frozen

from purerl.system.devices.kinds import ANY_ACCELERATOR

__all__ = ["Capacity", "capacity_of", "host_memory"]


@frozen
class Capacity:
    """Bytes that one rank may use.

    size            None if it is not known
    source          where it is from, in words
    is_accelerator  whether it is the memory of an accelerator, and not main memory
    """

    size: int | None
    source: str
    is_accelerator: bool


def capacity_of(trainer: Any, ranks: int, memory: int | None) -> Capacity:
    """The memory of each of `ranks` ranks on this host.

    trainer  settings of the trainer, of which `device` decides where it computes; "accelerator" is the one of this
             computer, and one whose memory is not known if there is none
    memory   bytes of the accelerator of each rank, which need not exist on this computer
    """
    from purerl.system.devices.accelerator import current_accelerator, default_device, total_memory

    device = getattr(trainer, "device", "cpu")
    if memory is not None:
        return Capacity(memory, "as given, for each rank", is_accelerator=not device.startswith("cpu"))
    if device == "auto":
        device = default_device().type
    if device == ANY_ACCELERATOR:
        device = getattr(current_accelerator(), "type", "an accelerator")
    if device.startswith("cpu"):
        share = f", divided by {ranks} ranks" if ranks > 1 else ""
        return Capacity(host_memory() // ranks, f"main memory{share}", is_accelerator=False)
    return Capacity(total_memory(device), f"memory of {device}", is_accelerator=True)


def host_memory() -> int:
    """Bytes of main memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
