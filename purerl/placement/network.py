"""The network over which ranks on several hosts talk.

By default gloo uses the network of the address that the name of a host has. Often that is 127.0.0.1 or 127.0.1.1, at
which other hosts cannot reach it. The network in which this host reaches rank 0 is one that all ranks have.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys

from purerl.backends.transfer.engine.purerl_receiver import local_address

__all__ = ["gloo_variables"]

_SIOCGIFADDR = 0x8915  # Linux: the address of an interface
_NAME, _ADDRESS = 256, slice(20, 24)  # bytes of what the kernel reads and writes


def gloo_variables(host: str) -> dict[str, str]:
    """The variable that makes gloo use the network in which `host` is.

    It is empty if `host` is this computer under a name that only itself has, or if the network cannot be found.
    """
    try:
        address = local_address(host)
        interface = None if ipaddress.ip_address(address).is_loopback else _interface(address)
    except OSError:
        interface = None
    return {"GLOO_SOCKET_IFNAME": interface} if interface else {}


def _interface(address: str) -> str | None:
    if sys.platform != "linux":
        return None
    return next((name for _, name in socket.if_nameindex() if _address(name) == address), None)


def _address(interface: str) -> str | None:
    """The IPv4 address of a network interface; None if it has none."""
    from fcntl import ioctl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            found = ioctl(any_socket.fileno(), _SIOCGIFADDR, struct.pack(f"{_NAME}s", interface.encode()))
        except OSError:
            return None
    return socket.inet_ntoa(found[_ADDRESS])
