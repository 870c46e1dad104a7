"""Process 1 of a sandbox: it builds the sandbox, starts the program, and collects processes that end.

When it ends, the kernel kills every process of the sandbox. The program cannot end, stop or read it: signals from
inside do not reach process 1, and it is not dumpable. It ends when the supervisor does.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from purerl.sandbox.messages import Message, Task, receive, send
from purerl.sandbox.supervisor import interpreter, landlock, seccomp
from purerl.sandbox.supervisor.program import (
    drop_capabilities,
    handle_signals_as_python,
    limit,
    refuse_privileges,
    restore_signals,
    take_descriptors,
)
from purerl.sandbox.supervisor.root import DEVICES, HOME, WRITABLE, add_private, write_files
from purerl.sandbox.supervisor.sampling import descendants
from purerl.sandbox.supervisor.setup_steps import reporting, step
from purerl.sandbox.supervisor.syscalls import close_from, prctl

__all__ = ["USER", "Setup", "initialize"]

USER = 1000
"""The user and group of programs, in the sandbox."""

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _UP = 0x8913, 0x8914, 1


class Setup(NamedTuple):
    """The decisions of the supervisor for a run.

    is_private  whether it has namespaces; otherwise it runs in the directory `directory` of the host
    has_cgroup  whether the kernel counts its memory
    """

    is_private: bool
    has_cgroup: bool
    directory: str


def initialize(descriptors: Sequence[int]) -> Callable[[], None]:
    """Build the sandbox in this process, and start the program.

    It returns only in the process of the program, with the function that the program is.

    descriptors  stdin, stdout and stderr of the program; in a session, the socket of its turns; and last, the socket
                 of the supervisor, on which everything else is exchanged: what to run, what was built, how it ended
    """
    take_descriptors(descriptors)
    report = socket.socket(fileno=len(descriptors) - 1)
    report.set_inheritable(False)
    with reporting(report):
        return _initialize(report, turns=3 if len(descriptors) > 4 else None)
    raise AssertionError


def _receive(report: socket.socket) -> Message:
    message = receive(report)
    if message is None:
        os._exit(1)  # the supervisor has ended
    return message


def _initialize(report: socket.socket, turns: int | None) -> Callable[[], None]:
    message = _receive(report)
    task, setup = Task.from_message(message), Setup(**message.header["setup"])
    if setup.is_private:
        shown, score = _enter(task)
    else:
        shown, score = _Shown(), None
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGHUP, lambda number, frame: _end_all())
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL if setup.is_private else signal.SIGHUP)
    send(report, Message({"has_proc": shown.has_proc, "landlock": shown.landlock}))
    socket.send_fds(report, [b"d"], shown.descriptors)
    for descriptor in shown.descriptors:
        os.close(descriptor)
    _receive(report)  # the supervisor has started its clock
    pid = os.fork()
    if pid == 0:
        return _start(task, setup, report, turns)
    if score is not None:
        os.write(score, b"0")  # only the program is the first to be killed when the host has no memory
    return _collect(pid, report)


class _Shown(NamedTuple):
    """The view of the supervisor. descriptors: of a private directory, and of /proc if `has_proc`."""

    has_proc: bool = False
    landlock: int = 0
    descriptors: tuple[int, ...] = ()


def _enter(task: Task) -> tuple[_Shown, int | None]:
    """Build the layers around this process, which is in its new namespaces, with the mounts of a template."""
    with step("user namespace"):
        prctl(_PR_SET_DUMPABLE, 1)  # or its files in /proc would belong to root
        for name, text in (("uid_map", f"{USER} {USER} 1"), ("setgroups", "deny"), ("gid_map", f"{USER} {USER} 1")):
            Path("/proc/self", name).write_text(text)
    score = _raise_score()
    with step("mount namespace"):
        has_proc = add_private(task.read_only, size=task.bounds.disk, num_files=task.bounds.files)
    with step("uts namespace"):
        socket.sethostname("sandbox")
    with step("network namespace"):
        _start_loopback()
    with step("files"):
        write_files(zip(task.files, task.contents, strict=True))
    with step("capabilities"):
        drop_capabilities()
        prctl(_PR_SET_DUMPABLE, 0)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    descriptors = [os.open(path, flags) for path in (HOME, *(["/proc"] if has_proc else []))]
    return _Shown(has_proc, landlock.version(), tuple(descriptors)), score


def _raise_score() -> int | None:
    """Let the kernel end this process first when memory runs out; a descriptor that changes this again."""
    with suppress(OSError):
        score = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        os.write(score, b"1000")
        return score
    return None


def _start_loopback() -> None:
    """Let programs connect to servers that they start themselves."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        name = struct.pack("16sh", b"lo", 0)
        flags = struct.unpack("16sh", ioctl(control, _SIOCGIFFLAGS, name))[1]
        ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | _UP))


def _start(task: Task, setup: Setup, report: socket.socket, turns: int | None) -> Callable[[], None]:
    """Become the program, as far as it goes before its own code."""
    is_python = task.kind != "command"
    with step("start"):
        close_from(report.fileno() + 1)
        os.setsid()
        restore_signals()
        if is_python:
            handle_signals_as_python()
        limit(task.bounds, is_alone=setup.is_private, is_session=turns is not None)
        if not setup.is_private:
            os.chdir(setup.directory)
            os.environ.update(HOME=setup.directory, TMPDIR=setup.directory)
            write_files(zip(task.files, task.contents, strict=True))
    if setup.is_private:
        with step("capabilities"):
            refuse_privileges()
        if task.layers != "without_landlock":
            with step("landlock"):
                landlock.restrict(WRITABLE, [path for path in DEVICES if os.path.exists(path)])
        with step("seccomp"):
            seccomp.install(seccomp.filter_of(os.uname().machine, shared_memory=setup.has_cgroup))
    if is_python:
        program = interpreter.prepare(task, turns)
        report.close()
        return program
    with step("command"):
        _execute(task.command)
    raise AssertionError


def _execute(command: Sequence[str]) -> NoReturn:
    """Become the program that `command` names. Raises: OSError with this name, not with the last place of the PATH."""
    try:
        os.execvpe(command[0], list(command), os.environ)  # noqa: S606 - no shell is meant
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), command[0]) from error


def _collect(program: int, report: socket.socket) -> NoReturn:
    """Collect processes that have ended, until the program has, and obey the supervisor. Then wait for the end."""
    null = os.open("/dev/null", os.O_RDWR)
    read, write = os.pipe()
    take_descriptors([null, null, null, report.detach(), read, write])
    report, read, write = socket.socket(fileno=3), 4, 5
    for descriptor in (read, write):
        os.set_blocking(descriptor, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # it only wakes this process up
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    order, ended = "", _reap(program)
    while ended is None:
        ready, _, _ = select.select([read, report], [], [])
        if read in ready:
            os.read(read, 4096)
        ended = _reap(program)  # before an order: a program that has ended is not interrupted any more
        if ended is None and report in ready:
            message = receive(report)
            if message is None:  # the supervisor has ended
                _end_all()
            order = message.header["order"]
            _obey(order, program)
            if order == "pause":
                with suppress(OSError):
                    send(report, Message({"is_paused": True}))
    with suppress(OSError):
        send(report, Message({**ended, "was_interrupted": order == "interrupt"}))
        receive(report)  # the supervisor measures what the program has left, and then ends this process
    _end_all()


def _reap(program: int) -> dict[str, Any] | None:
    """Collect all processes that have ended; how the program ended, if it has."""
    while True:
        pid, status, usage = os.wait4(-1, os.WNOHANG)
        if pid == program:
            seconds = usage.ru_utime + usage.ru_stime
            return {"exit": os.waitstatus_to_exitcode(status), "memory": usage.ru_maxrss * 1024, "cpu_seconds": seconds}
        if pid == 0:
            return None


def _obey(order: str, program: int) -> None:
    """Carry out an order of the supervisor of a session."""
    if order == "interrupt":
        with suppress(ProcessLookupError):
            os.kill(program, signal.SIGINT)
    else:
        _signal_all({"pause": signal.SIGSTOP, "continue": signal.SIGCONT}[order])


def _signal_all(number: int) -> None:
    """Send a signal to all other processes of the sandbox."""
    for pid in [-1] if os.getpid() == 1 else descendants(os.getpid()):  # in a namespace, -1 are all of its processes
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _end_all() -> NoReturn:
    """End this process, and with it the sandbox. Without a namespace, each process has to be killed.

    The list of processes may lack one that gets a new parent while it is read. So they are killed again and again.
    """
    while os.getpid() != 1:
        _signal_all(signal.SIGKILL)
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.001)
        except ChildProcessError:
            break
    os._exit(0)
