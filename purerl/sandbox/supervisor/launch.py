"""Starting and ending a sandbox, in the process of its supervisor."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from io import FileIO
from typing import Any, NoReturn

from purerl.sandbox.messages import Message, Task, receive, send
from purerl.sandbox.supervisor.cgroups import Cgroup
from purerl.sandbox.supervisor.init import Setup
from purerl.sandbox.supervisor.monitor import Channels
from purerl.sandbox.supervisor.sampling import Sampler, descendants
from purerl.sandbox.supervisor.seccomp import MACHINES
from purerl.sandbox.supervisor.spawner import Refusal
from purerl.sandbox.supervisor.spawners import Spawners

__all__ = ["Sandbox"]

_START_SECONDS = 60
_END_SECONDS = 10.0


class Sandbox:
    """The sandbox for `task`, seen from outside. It starts a process that waits for a message on `channels.report`.

    channels  its sockets and pipes
    cgroup    its control group, if it has one
    sampler   measures its processes, if they can be seen
    layers    which layers protect it

    Raises: Refusal; OSError.
    """

    def __init__(self, task: Task, owner: socket.socket, spawners: Spawners):
        self._is_private = task.layers != "none"
        self._pid, self._directory = 0, ""
        self._stack = ExitStack()
        self.cgroup: Cgroup | None = None
        self.sampler: Sampler | None = None
        self.layers: Mapping[str, Any] = {}
        try:
            self._start(task, owner, spawners)
        except BaseException:
            self.close()
            raise

    def _start(self, task: Task, owner: socket.socket, spawners: Spawners) -> None:
        if self._is_private and os.uname().machine not in MACHINES:
            raise Refusal("seccomp", None, f"there is no filter for {os.uname().machine}")
        start = spawners.prepare(task)
        self.cgroup = start.cgroup
        if not self._is_private:
            self._directory = _make_directory()
        (stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr) = (_pipe() for _ in range(3))
        report, theirs = map(self._stack.enter_context, socket.socketpair())
        turns, their_turns = socket.socketpair() if task.kind == "session" else (None, None)
        pipes = FileIO(to_stdin, "wb"), FileIO(from_stdout), FileIO(from_stderr)
        for end in (*pipes, *([turns] if turns else [])):
            self._stack.enter_context(end)
        self.channels = Channels(owner, report, *pipes, turns)
        given = [stdin, stdout, stderr, *([their_turns.detach()] if their_turns else []), theirs.detach()]
        self._pid = start.spawn(given)
        self._build(task, report)

    def _build(self, task: Task, report: socket.socket) -> None:
        """Let process 1 build the sandbox, and learn what it has built."""
        report.settimeout(_START_SECONDS)
        setup = Setup(self._is_private, self.cgroup is not None, self._directory)
        header, parts = task._replace(stdin=b"").to_message()
        send(report, Message({**header, "setup": setup._asdict()}, parts))
        message = receive(report)
        if message is None:
            self._refuse_start()
        if "error" in message.header:
            raise Refusal(**message.header["error"])
        descriptors = socket.recv_fds(report, 1, 2)[1]
        if not self._is_private:
            descriptors = [os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
            self.sampler = Sampler(descriptors[0], None, lambda: descendants(self._pid))
        elif message.header["has_proc"]:
            self.sampler = Sampler(descriptors[1], descriptors[0])
        elif self.cgroup is None:
            text = "processes can be measured neither by cgroups nor in a /proc of their own"
            raise Refusal("accounting", None, text)
        for descriptor in descriptors:
            self._stack.callback(os.close, descriptor)
        accounting = "sampling" if self.cgroup is None else f"cgroups, version {self.cgroup.version}"
        self.layers = {"accounting": accounting, **message.header}

    def _refuse_start(self) -> NoReturn:
        if self.cgroup is not None and self.cgroup.has_exceeded_memory():
            raise Refusal("files", None, "the program and its files need more memory than the run may use")
        raise Refusal("start", None, "process 1 of the sandbox has ended")

    def order(self, order: str) -> None:
        """Let process 1 "pause" or "continue" all processes of a session, or "interrupt" its program."""
        with suppress(OSError):  # it has ended
            send(self.channels.report, Message({"order": order}))

    def end(self) -> None:
        """End all processes of the sandbox, wait until they have ended, and remove their directory."""
        if self._pid:
            _end_process(self._pid, signal.SIGKILL if self._is_private else signal.SIGHUP)
            self._pid = 0
        if self._directory:
            _remove(self._directory)
            self._directory = ""

    def close(self) -> None:
        """End it, and release what belongs to it."""
        self.end()
        self._stack.close()
        if self.cgroup is not None and not self._is_private:
            self.cgroup.close()


def _pipe() -> tuple[int, int]:
    """A pipe that a program can open again, as /dev/stdin: its user is not the one of this process."""
    read, write = os.pipe()
    os.fchmod(read, 0o666)  # of both ends
    return read, write


def _make_directory() -> str:
    import tempfile  # these two modules are needed only here, and take a tenth of the start of a supervisor

    return tempfile.mkdtemp(prefix="purerl-sandbox-")


def _remove(directory: str) -> None:
    import shutil

    shutil.rmtree(directory, ignore_errors=True)


def _end_process(pid: int, number: int) -> None:
    """Send a signal to a child, and wait for its end; after a while, kill it."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
    end = time.monotonic() + _END_SECONDS
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return
        time.sleep(0.0005)
