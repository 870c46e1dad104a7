"""The device of a model."""

from __future__ import annotations

import torch

from purerl.errors import ConfigError

__all__ = ["device_of"]


def device_of(name: str) -> torch.device:
    """The device `name`; "auto" is the accelerator if there is one, otherwise the CPU.

    Raises: ConfigError if torch cannot use the device.
    """
    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        need = "a device that torch can use"
        raise ConfigError("device", got=f"{name}: {str(error).splitlines()[0]}", need=need) from error
