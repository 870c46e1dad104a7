"""Which CUDA devices the servers that a process starts use."""

from __future__ import annotations

import os
from collections.abc import Sequence

from purerl.backends.serving.api import Command
from purerl.backends.serving.settings import ServerSettings, is_on_cpu
from purerl.errors import ConfigError

__all__ = ["devices_of_servers", "on_devices"]

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def devices_of_servers(server: ServerSettings) -> Sequence[str | None]:
    """The value of ``CUDA_VISIBLE_DEVICES`` for each server of this process; None on the CPU, or without any devices.

    Every server gets `tensor_parallel_size` devices of its own, in order: from `server.devices`, or from all devices
    that this process sees.

    Raises: ConfigError if there are not enough.
    """
    import torch

    if server.urls or is_on_cpu(server) or not (server.devices or torch.cuda.is_available()):
        return [None] * (len(server.urls) or server.number)
    names = os.environ.get(_VISIBLE)
    seen = names.split(",") if names else [*map(str, range(torch.cuda.device_count()))]
    devices, size = [*server.devices] or seen, server.tensor_parallel_size
    own = [devices[k * size : (k + 1) * size] for k in range(server.number)]
    if len(own[-1]) < size:
        source = "server.devices" if server.devices else "devices that this process sees"
        need = f"{server.number * size}: {size} for each of {server.number} servers"
        do = "set server.devices, or lower server.number or server.tensor_parallel_size"
        raise ConfigError(source, got=f"{len(devices)}: {', '.join(devices)}", need=need, do=do)
    return [",".join(each) for each in own]


def on_devices(command: Command, devices: str | None) -> Command:
    """`command` with the variable that shows only `devices` to it."""
    variables = {} if devices is None else {_VISIBLE: devices}
    return command._replace(environment={**command.environment, **variables})
