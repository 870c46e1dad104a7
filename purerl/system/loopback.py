"""Connections that stay on this host: by default gloo listens at the address of the host's name."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

__all__ = ["loopback_variables", "with_variables"]

_INTERFACES = ("lo", "lo0")  # of Linux, and of macOS


def loopback_variables() -> dict[str, str]:
    """The variable that makes gloo use loopback only, which no other host reaches, where the interface is known."""
    names = {name for _, name in socket.if_nameindex()}
    return next(({"GLOO_SOCKET_IFNAME": name} for name in _INTERFACES if name in names), {})


@contextmanager
def with_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Set the environment variables that are not set in the block. What a user has set stays."""
    missing = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]
