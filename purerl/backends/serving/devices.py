"""The accelerators of the servers that a process starts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from purerl.backends.serving.api import Command
from purerl.backends.serving.settings import ServerSettings, kind_of_devices
from purerl.errors import ConfigError
from purerl.system.devices.kinds import (
    ANY_ACCELERATOR,
    BETWEEN_DEVICES,
    BROADCAST_BETWEEN_DEVICES,
    HANDLES_OF_DEVICE,
    KIND_WITH_HANDLES,
    VISIBLE_DEVICES,
)

__all__ = ["check_transfer", "devices_of_servers", "on_devices"]

_KINDS = " or ".join(VISIBLE_DEVICES)


def devices_of_servers(server: ServerSettings) -> Sequence[Mapping[str, str]]:
    """The environment variables that select the devices of each server; none on the CPU, or without any devices.

    Every server gets `tensor_parallel_size` devices of its own, in order: from `server.devices`, or from all devices
    that this process sees.

    Raises: ConfigError if there are not enough.
    """
    import torch

    from purerl.system.devices.accelerator import default_device, visible_devices_variables

    kind = kind_of_devices(server)
    count = torch.accelerator.device_count() if default_device().type == kind else 0
    if server.urls or kind == "cpu" or not (server.devices or count):
        return [{}] * (len(server.urls) or server.number)
    if kind == ANY_ACCELERATOR:
        need = "the kind of the devices: torch finds no accelerator here that servers can use"
        raise ConfigError("server.devices", got=[*server.devices], need=need, do=f"set server.device to {_KINDS}")
    variables = visible_devices_variables(kind)
    names = next((value for name in variables if (value := os.environ.get(name))), None)
    seen = names.split(",") if names else [*map(str, range(count))]
    devices, size = [*server.devices] or seen, server.tensor_parallel_size
    own = [devices[k * size : (k + 1) * size] for k in range(server.number)]
    if len(own[-1]) < size:
        source = "server.devices" if server.devices else "devices that this process sees"
        need = f"{server.number * size}: {size} for each of {server.number} servers"
        do = "set server.devices, or lower server.number or server.tensor_parallel_size"
        raise ConfigError(source, got=f"{len(devices)}: {', '.join(devices)}", need=need, do=do)
    return [dict.fromkeys(variables, ",".join(each)) for each in own]


def check_transfer(server: ServerSettings) -> None:
    """Raise ConfigError if devices cannot send weights to those of the servers as `server.weight_transfer` says."""
    from purerl.system.devices.accelerator import default_device

    name, own, servers = server.transfer, default_device().type, kind_of_devices(server)
    if name not in BETWEEN_DEVICES or servers == ANY_ACCELERATOR:
        return
    if not own == servers == KIND_WITH_HANDLES:
        got = f"{name}, with a trainer on {own} and servers on {servers}"
        need = f"a trainer and servers on {KIND_WITH_HANDLES}"
        do = f"set it to {'gloo' if server.urls else 'shared_memory'}"
        raise ConfigError("server.weight_transfer", got=got, need=need, do=do)
    if name == HANDLES_OF_DEVICE and server.urls:
        got = f"{name}, with servers that run already"
        do = f"set it to {BROADCAST_BETWEEN_DEVICES} or gloo"
        raise ConfigError("server.weight_transfer", got=got, need="servers that purerl starts on its host", do=do)
    if name == BROADCAST_BETWEEN_DEVICES and not (server.urls or server.devices):
        got = f"{name}, with servers on the devices of the trainer"
        need, do = "servers on devices of their own", f"set server.devices, or set it to {HANDLES_OF_DEVICE}"
        raise ConfigError("server.weight_transfer", got=got, need=need, do=do)


def on_devices(command: Command, variables: Mapping[str, str]) -> Command:
    """`command` with the `variables` that show only some devices to it."""
    return command._replace(environment={**command.environment, **variables})
