"""Starting and ending a sandbox, in the process of its supervisor."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache, partial
from io import FileIO
from pathlib import Path
from typing import Any, NoReturn

from purerl.sandbox.messages import Message, Task, receive, send
from purerl.sandbox.supervisor.cgroups import Cgroup, find_parents
from purerl.sandbox.supervisor.init import Setup
from purerl.sandbox.supervisor.monitor import Channels
from purerl.sandbox.supervisor.sampling import Sampler, descendants
from purerl.sandbox.supervisor.seccomp import MACHINES
from purerl.sandbox.supervisor.spawner import NAMESPACES, Refusal, Spawner

__all__ = ["Sandbox", "Spawners", "cgroup_parents"]

_START_SECONDS = 60
_END_SECONDS = 10.0


@cache
def cgroup_parents() -> Mapping[str, Path] | None:
    """Where control groups can be created; None: nowhere."""
    try:
        return find_parents(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    except OSError:
        return None


class Spawners:
    """The spawners of a supervisor: `base`, for programs without layers, and a template for each kind of sandbox."""

    def __init__(self, base: Spawner):
        self.base = base
        self._templates: dict[tuple[tuple[str, ...], bool], Spawner] = {}

    def prepare(self, task: Task, *, has_cgroup: bool) -> Callable[[Sequence[int]], int]:
        """A function that starts process 1 of a sandbox for `task`, given its descriptors. Raises: Refusal."""
        if task.layers == "none":
            return partial(self.base.spawn, 0)
        key = tuple(task.read_only), has_cgroup  # shared pages of /dev/zero are memory that only a cgroup counts
        if key not in self._templates:
            self._templates[key] = self.base.open_template(task.read_only, with_zero=has_cgroup)
        return partial(self._spawn, key)

    def _spawn(self, key: tuple[tuple[str, ...], bool], descriptors: Sequence[int]) -> int:
        try:
            return self._templates[key].spawn(sum(NAMESPACES.values()), descriptors)
        except ConnectionError:
            self._templates.pop(key).end()
            raise
        except OSError as error:
            raise Refusal(self.base.missing_namespace(), error.errno, str(error)) from error

    def end(self) -> None:
        """End all of them."""
        for spawner in (self.base, *self._templates.values()):
            spawner.end()


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
        self._open_cgroup(task)
        spawn = spawners.prepare(task, has_cgroup=self.cgroup is not None)
        if not self._is_private:
            self._directory = _make_directory()
        (stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr) = (os.pipe() for _ in range(3))
        report, theirs = map(self._stack.enter_context, socket.socketpair())
        turns, their_turns = socket.socketpair() if task.kind == "session" else (None, None)
        pipes = FileIO(to_stdin, "wb"), FileIO(from_stdout), FileIO(from_stderr)
        for end in (*pipes, *([turns] if turns else [])):
            self._stack.enter_context(end)
        self.channels = Channels(owner, report, *pipes, turns)
        given = [stdin, stdout, stderr, *([their_turns.detach()] if their_turns else []), theirs.detach()]
        self._pid = spawn(given)
        self._build(task, report)

    def _open_cgroup(self, task: Task) -> None:
        """Create a control group, if there should be one. In "auto", there is none if it cannot be created."""
        if task.accounting == "sampling":
            return
        parents, bounds = cgroup_parents(), task.bounds
        reason = OSError("this process may not create control groups of memory and pids")
        if parents is not None:
            try:
                self.cgroup = Cgroup(parents, memory=bounds.memory, processes=bounds.processes + 1)
            except OSError as error:
                reason = error
        if self.cgroup is None and task.accounting == "cgroups":
            raise Refusal("cgroups", reason.errno, str(reason))

    def _build(self, task: Task, report: socket.socket) -> None:
        """Let process 1 build the sandbox, and learn what it has built."""
        if self.cgroup is not None:
            self.cgroup.add(self._pid)
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
        if self.cgroup is not None:
            self.cgroup.close()


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
