"""A network namespace that reaches this host by a pair of virtual interfaces: another computer, for the tests."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from attrs import frozen

__all__ = ["Network", "UnavailableError", "other_network"]

_CANDIDATES = (*IPv4Network("198.51.100.0/24").subnets(new_prefix=30), *IPv4Network("10.213.77.0/24").subnets(4))
"""Addresses for documentation (RFC 5737), which no network should use, and private ones."""


class UnavailableError(Exception):
    """There can be no other network here; the message says why."""


@frozen
class Network:
    """The namespace `name`. In it this host has the address `host`."""

    name: str
    host: str


@contextmanager
def other_network() -> Iterator[Network]:
    """Make a network, and remove it after the block. Raises: UnavailableError if the kernel refuses."""
    if os.geteuid() != 0:
        raise UnavailableError("only root may make a network namespace")
    if shutil.which("ip") is None:
        raise UnavailableError("there is no command ip; it belongs to iproute2")
    name, ours, theirs = f"purerl-test-{os.getpid()}", f"purerl{os.getpid() % 10**7}a", f"purerl{os.getpid() % 10**7}b"
    subnet = _free_subnet()
    here, there = (f"{address}/{subnet.prefixlen}" for address in subnet.hosts())
    try:
        _ip("netns", "add", name)
        _ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name)
        _ip("address", "add", here, "dev", ours)
        _ip("link", "set", ours, "up")
        _ip("-n", name, "address", "add", there, "dev", theirs)
        _ip("-n", name, "link", "set", theirs, "up")
        yield Network(name, here.partition("/")[0])
    finally:
        for arguments in (("link", "delete", ours), ("netns", "delete", name)):
            subprocess.run(["ip", *arguments], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnavailableError(f"no network namespace with a pair of interfaces here: {done.stderr.strip()}")


def _free_subnet() -> IPv4Network:
    """A subnet that is not part of a network that this host has a route to, except by its default route."""
    routes = [_route(line) for line in Path("/proc/net/route").read_text().splitlines()[1:]]
    used = [route for route in routes if route.prefixlen]
    return next(subnet for subnet in _CANDIDATES if not any(subnet.overlaps(route) for route in used))


def _route(line: str) -> IPv4Network:
    fields = line.split()
    address, mask = (IPv4Address(socket.inet_ntoa(struct.pack("=I", int(fields[k], 16)))) for k in (1, 7))
    return IPv4Network(f"{address}/{mask}")
