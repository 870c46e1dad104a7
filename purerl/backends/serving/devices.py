"""Which CUDA devices the servers of this process use."""

from __future__ import annotations

import os
from collections.abc import Sequence

from purerl.backends.serving.api import Command
from purerl.backends.serving.settings import ServerSettings, is_on_cpu
from purerl.errors import ConfigError

__all__ = ["VISIBLE", "devices_of_servers", "on_devices"]

VISIBLE = "CUDA_VISIBLE_DEVICES"


def devices_of_servers(server: ServerSettings) -> Sequence[str | None]:
    """The value of ``CUDA_VISIBLE_DEVICES`` for each server of this process; None on the CPU, or without any devices.

    Every server gets `tensor_parallel_size` devices of its own. They are taken in order, first for the servers of rank
    0 of this host: from `server.devices`, or from all devices that this process sees.

    Raises: ConfigError if there are not enough.
    """
    import torch

    if server.urls or is_on_cpu(server) or not (server.devices or torch.cuda.is_available()):
        return [None] * (len(server.urls) or server.number)
    if server.devices:
        devices, rank, source = [*server.devices], int(os.environ.get("LOCAL_RANK", "0")), "server.devices"
    else:
        names = os.environ.get(VISIBLE)
        devices = names.split(",") if names else [*map(str, range(torch.cuda.device_count()))]
        rank, source = torch.cuda.current_device(), "devices that this process sees"
    size = server.tensor_parallel_size
    own = [devices[k * size : (k + 1) * size] for k in range(rank * server.number, (rank + 1) * server.number)]
    if len(own[-1]) < size:
        need = f"{(rank + 1) * server.number * size}: {size} for each of {server.number} servers of {rank + 1} ranks"
        do = "set server.devices, or lower server.number or server.tensor_parallel_size"
        raise ConfigError(source, got=f"{len(devices)}: {', '.join(devices)}", need=need, do=do)
    return [",".join(each) for each in own]


def on_devices(command: Command, devices: str | None) -> Command:
    """`command` with the variable that shows only `devices` to it."""
    variables = {} if devices is None else {VISIBLE: devices}
    return command._replace(environment={**command.environment, **variables})
