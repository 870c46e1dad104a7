"""The accelerator of this process, of any kind.

What every accelerator has is asked of `torch.accelerator`. Of the rest, `torch.get_device_module` says whether the kind
has it: torch.mps, for example, counts no peaks.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from purerl.errors import ConfigError
from purerl.system.devices.kinds import ROCM_VISIBLE_DEVICES, VISIBLE_DEVICES

__all__ = [
    "collective_backends",
    "current_accelerator",
    "current_device",
    "default_device",
    "device_name",
    "device_of",
    "memory_history",
    "peak_device_memory",
    "release_cached_memory",
    "total_memory",
    "visible_devices_variables",
]

_CPU_BACKEND = "gloo"


def current_accelerator() -> torch.device | None:
    """The accelerator that torch was built for, if this computer has a device of it."""
    return torch.accelerator.current_accelerator(check_available=True)


def default_device() -> torch.device:
    """The accelerator if there is one, otherwise the CPU."""
    return current_accelerator() or torch.device("cpu")


def current_device() -> torch.device:
    """`default_device`, with the number of the one that this process uses if no number is given."""
    device = default_device()
    return device if device.type == "cpu" else torch.device(device.type, torch.accelerator.current_device_index())


def device_of(name: str) -> torch.device:
    """The device `name`; "auto" is `default_device`.

    Raises: ConfigError if torch cannot use the device.
    """
    if name == "auto":
        return default_device()
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, ImportError) as error:
        need = f"a device that torch can use here: {' or '.join(sorted({'cpu', default_device().type}))}"
        do = "leave it at auto, or install the torch of this device"
        reason = str(error).splitlines()[0].partition(". ")[0]
        raise ConfigError("device", got=f"{name}: {reason}", need=need, do=do) from error


def device_name(device: torch.device) -> str:
    """The product name of `device`, such as "NVIDIA H100 80GB HBM3"; its kind where torch has no such name."""
    get_name = getattr(torch.get_device_module(device), "get_device_name", None)
    return device.type if get_name is None else get_name(device)


def total_memory(name: str) -> int | None:
    """Bytes of the memory of the device `name`; None if it is no accelerator of this computer, or not known."""
    found = current_accelerator()
    if found is None or found.type != name.partition(":")[0]:
        return None
    properties = getattr(torch.get_device_module(found), "get_device_properties", None)
    return None if properties is None else getattr(properties(torch.device(name)), "total_memory", None)


def peak_device_memory() -> int | None:
    """Most bytes of tensors at a time on the accelerator of this process; None if it is not used or not counted."""
    peak = getattr(_module(), "max_memory_allocated", None)
    return None if peak is None else peak() or None


def release_cached_memory() -> None:
    """Give memory that the allocator keeps for later tensors back to the accelerator, if there is one."""
    empty_cache = getattr(_module(), "empty_cache", None)
    if empty_cache is not None:
        empty_cache()


def memory_history() -> Any | None:
    """The module with which torch records the allocations of the accelerator; None if it cannot."""
    memory = getattr(_module(), "memory", None)
    return memory if hasattr(memory, "_record_memory_history") else None


def collective_backends() -> str:
    """The backends of a process group, as `torch.distributed.init_process_group` takes them.

    gloo for the CPU, where batches and scores are, and for the accelerator the one that torch has for it:
    "cpu:gloo,xpu:xccl". Without an accelerator, and if it has no other than gloo, it is "gloo" alone.

    Raises: ConfigError if no backend is registered for the accelerator.
    """
    device = default_device()
    try:
        backend = torch.distributed.get_default_backend_for_device(device)
    except ValueError as error:
        need = f"a backend of torch.distributed that is registered for {device.type}"
        do = "start one process, or import the package that registers it"
        raise ConfigError("collective calls between ranks", got=str(error), need=need, do=do) from error
    return _CPU_BACKEND if backend == _CPU_BACKEND else f"cpu:{_CPU_BACKEND},{device.type}:{backend}"


def visible_devices_variables(kind: str) -> tuple[str, ...]:
    """The environment variables that select the devices of `kind`, which are set together. The first one counts."""
    table = VISIBLE_DEVICES if torch.version.hip is None else {**VISIBLE_DEVICES, **ROCM_VISIBLE_DEVICES}
    return tuple(table[kind])


def _module() -> ModuleType | None:
    device = current_accelerator()
    return None if device is None else torch.get_device_module(device)
