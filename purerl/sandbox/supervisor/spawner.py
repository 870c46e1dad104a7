"""Where the processes of sandboxes come from: a fork of the supervisor from the time when it knew nothing of any run.

A program could read the memory of the process that it was forked from. The spawner has only what each new interpreter
has. Its children are children of the supervisor, so the kernel ends them with the supervisor.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Sequence

from purerl.sandbox.supervisor.init import initialize
from purerl.sandbox.supervisor.syscalls import clone

__all__ = ["NAMESPACES", "Spawner", "serve_spawner"]

NAMESPACES = {
    "user namespace": 0x10000000,
    "mount namespace": 0x00020000,
    "pid namespace": 0x20000000,
    "network namespace": 0x40000000,
    "ipc namespace": 0x08000000,
    "uts namespace": 0x04000000,
}
"""The namespaces of a sandbox, and the flags with which they are created."""

_CLONE_PARENT = 0x8000
_MESSAGE = struct.Struct("!q")
_MAX_DESCRIPTORS = 8


class Spawner:
    """The supervisor's side: `connection` is its socket to the spawner."""

    def __init__(self, connection: socket.socket):
        self._connection = connection

    def spawn(self, flags: int, descriptors: Sequence[int]) -> int:
        """Start a process with new namespaces, which gets `descriptors`, and return its id.

        The descriptors are closed here. Without any, the process ends at once.

        Raises: OSError.
        """
        socket.send_fds(self._connection, [_MESSAGE.pack(flags)], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        answer = self._connection.recv(_MESSAGE.size)
        if len(answer) < _MESSAGE.size:
            raise ConnectionError("the spawner of a sandbox has ended")
        pid = _MESSAGE.unpack(answer)[0]
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return pid

    def missing_namespace(self) -> str | None:
        """The first of the namespaces that cannot be created, by trying each of them."""
        for name, flag in NAMESPACES.items():
            try:
                os.waitpid(self.spawn(flag | NAMESPACES["user namespace"], []), 0)
            except OSError:
                return name
        return None


def serve_spawner(connection: socket.socket) -> Callable[[], None]:
    """The spawner's side. Returns in the process of a program, with the function that the program is."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, _MESSAGE.size, _MAX_DESCRIPTORS)
        if len(data) < _MESSAGE.size:
            os._exit(0)  # the supervisor has ended
        try:
            pid = clone(_MESSAGE.unpack(data)[0] | _CLONE_PARENT)
        except OSError as error:
            pid = -(error.errno or 1)
        if pid == 0:
            return initialize(descriptors) if descriptors else os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(_MESSAGE.pack(pid))
