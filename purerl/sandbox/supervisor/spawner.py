"""The source of sandbox processes: forks of the supervisor from the time when it knew nothing of any run.

A program could read the memory of the process that it was forked from. A spawner has only what each new interpreter
has. Its children are children of the supervisor, so the kernel ends them with the supervisor.

A template is a spawner in a user namespace, as an unprivileged user, whose file system has everything of a sandbox that
is not private. A sandbox that is forked from it starts with a copy of its mounts, and can change none of them.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from purerl.sandbox.messages import Message, receive, send
from purerl.sandbox.supervisor.init import USER, initialize
from purerl.sandbox.supervisor.program import take_descriptors
from purerl.sandbox.supervisor.root import build_template, find_sources, open_sources
from purerl.sandbox.supervisor.setup_steps import reporting, step
from purerl.sandbox.supervisor.syscalls import clone, prctl

__all__ = ["NAMESPACES", "Refusal", "Spawner", "serve_spawner"]

NAMESPACES = {
    "user namespace": 0x10000000,
    "mount namespace": 0x00020000,
    "pid namespace": 0x20000000,
    "network namespace": 0x40000000,
    "ipc namespace": 0x08000000,
    "uts namespace": 0x04000000,
}
"""The namespaces of a sandbox, and the flags with which they are created."""

_OUTSIDE_USER = 65534  # what programs are outside of the sandbox, if the owner is root
_CLONE_PARENT, _PR_SET_PDEATHSIG = 0x8000, 1
_REQUEST, _ANSWER = struct.Struct("!q?"), struct.Struct("!q")
_MAX_DESCRIPTORS = 8
_START_SECONDS = 60


class Refusal(Exception):  # noqa: N818 -- a message to the owner, who raises an error
    """The sandbox cannot be built: in which step, the number of the system's error, and a text."""

    def __init__(self, step: str, errno: int | None, text: str):
        super().__init__(step, errno, text)
        self.message = {"step": step, "errno": errno, "text": text}


class Spawner:
    """The supervisor's side of a spawner: its process id, and a socket to it."""

    def __init__(self, pid: int, connection: socket.socket):
        self.pid, self._connection = pid, connection
        connection.settimeout(_START_SECONDS)

    def spawn(self, flags: int, descriptors: Sequence[int], *, is_template: bool = False) -> int:
        """Start a process with new namespaces, which gets `descriptors`, and return its id.

        The descriptors are closed here. Without any, the process ends at once.

        Raises: OSError; ConnectionError if the spawner has ended.
        """
        try:
            socket.send_fds(self._connection, [_REQUEST.pack(flags, is_template)], descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        answer = self._connection.recv(_ANSWER.size)
        if len(answer) < _ANSWER.size:
            raise ConnectionError("the spawner of a sandbox has ended")
        pid = _ANSWER.unpack(answer)[0]
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return pid

    def missing_namespace(self) -> str:
        """The first of the namespaces that cannot be created, by trying each of them."""
        for name, flag in NAMESPACES.items():
            try:
                os.waitpid(self.spawn(flag | NAMESPACES["user namespace"], []), 0)
            except OSError:
                return name
        return "user namespace"

    def open_template(self, read_only: Sequence[str], *, with_zero: bool) -> Spawner:
        """A spawner of sandboxes, with what `purerl.sandbox.supervisor.root.find_sources` describes.

        Raises: Refusal.
        """
        ours, theirs = socket.socketpair()
        flags = NAMESPACES["user namespace"] | NAMESPACES["mount namespace"]
        try:
            pid = self.spawn(flags, [theirs.detach()], is_template=True)
        except OSError as error:
            raise Refusal(self.missing_namespace(), error.errno, str(error)) from error
        ours.settimeout(_START_SECONDS)
        header = {"read_only": list(read_only), "with_zero": with_zero, "is_privileged": _map_user(pid)}
        send(ours, Message(header))
        answer = receive(ours)
        if answer is None or "error" in answer.header:
            os.waitpid(pid, 0)
            ended = {"step": "start", "errno": None, "text": "the template of sandboxes has ended"}
            raise Refusal(**(answer.header["error"] if answer else ended))
        return Spawner(pid, ours)

    def end(self) -> None:
        """End it, and collect it, so that no zombie is left to a process that does not expect it."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._connection.close()


def _map_user(pid: int) -> bool:
    """Make the user of a template an unprivileged one outside. Returns whether its groups can be dropped."""
    folder = Path("/proc", str(pid))
    candidates = [(_OUTSIDE_USER, _OUTSIDE_USER, True)] if os.geteuid() == 0 else []
    reason = OSError("no user can be mapped")
    for user, group, is_privileged in [*candidates, (os.geteuid(), os.getegid(), False)]:
        try:
            (folder / "uid_map").write_text(f"{USER} {user} 1")
            if not is_privileged:
                (folder / "setgroups").write_text("deny")
            (folder / "gid_map").write_text(f"{USER} {group} 1")
        except OSError as error:
            reason = error
        else:
            return is_privileged
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise Refusal("user namespace", reason.errno, str(reason))


def serve_spawner(connection: socket.socket) -> Callable[[], None]:
    """Fork what the supervisor asks for. Returns in the process of a program, with the function that the program is."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, _REQUEST.size, _MAX_DESCRIPTORS)
        if len(data) < _REQUEST.size:
            os._exit(0)  # the supervisor has ended
        flags, is_template = _REQUEST.unpack(data)
        try:
            pid = clone(flags | _CLONE_PARENT)
        except OSError as error:
            pid = -(error.errno or 1)
        if pid == 0:
            if not descriptors:
                os._exit(0)
            connection.detach()  # its number will belong to another file, which its object must not close
            return _serve_template(descriptors) if is_template else initialize(descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(_ANSWER.pack(pid))


def _serve_template(descriptors: Sequence[int]) -> Callable[[], None]:
    """Build the template in this process, which has new namespaces, and become the spawner of its sandboxes."""
    null = os.open("/dev/null", os.O_RDWR)
    take_descriptors([null, null, null, *descriptors])
    connection = socket.socket(fileno=3)
    connection.set_inheritable(False)
    with reporting(connection):
        message = receive(connection)
        if message is None:
            os._exit(0)
        header = message.header
        with step("read_only"):
            for path in header["read_only"]:
                os.stat(path)
        with step("mount namespace"):
            sources = find_sources(tuple(header["read_only"]), with_zero=header["with_zero"])
            opened = open_sources(sources)
        with step("user namespace"):
            if header["is_privileged"]:
                os.setgroups([])
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
        with step("mount namespace"):
            build_template(sources, opened)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        send(connection, Message({}))
    return serve_spawner(connection)
