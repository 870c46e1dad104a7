"""The device that a model is put on."""

from __future__ import annotations

import torch

from purerl.errors import ConfigError

__all__ = ["device_of"]


def device_of(name: str) -> torch.device:
    """The device `name`; of "auto" the accelerator, if there is one. Raises ConfigError where torch finds none."""
    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ConfigError("device", got=f"{name}: {str(error).splitlines()[0]}", need="one that torch finds") from error
