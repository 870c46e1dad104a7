"""Turning a process into the program of a run: file descriptors, signals, limits, and the filters of its calls.

Nothing of the sandbox stays in the process that the program could use.
"""

from __future__ import annotations

import itertools
import os
import resource
import signal
from collections.abc import Sequence
from contextlib import suppress
from fcntl import F_DUPFD, fcntl

from purerl.sandbox.messages import Bounds
from purerl.sandbox.supervisor.syscalls import capset_empty, close_from, prctl

__all__ = [
    "drop_capabilities",
    "handle_signals_as_python",
    "limit",
    "refuse_privileges",
    "restore_signals",
    "take_descriptors",
]

_PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 4, 24
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
_ABOVE = 16  # more descriptors than a program starts with
_STACK = 2**23  # bytes; a program may raise it
_SIGNALS = 1024  # that wait to be delivered, each of which is memory of the kernel
_MORE_PROCESSES = 16  # than allowed, before the kernel refuses them
_KERNEL_THAT_COUNTS_PER_NAMESPACE = (5, 14)


def take_descriptors(wanted: Sequence[int]) -> None:
    """Make the descriptors `wanted` 0, 1, 2, and so on. All others are closed."""
    for k, descriptor in enumerate([fcntl(descriptor, F_DUPFD, _ABOVE) for descriptor in wanted]):
        os.dup2(descriptor, k)
    close_from(len(wanted))


def restore_signals() -> None:
    """Unblock all signals, and handle them as a new program does."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError):  # reserved by the C library
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def handle_signals_as_python() -> None:
    """Handle signals as a new Python interpreter does, instead of a new program."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)


def limit(bounds: Bounds, *, is_alone: bool, is_session: bool) -> None:
    """Set the limits that the kernel keeps for each process. In a session, CPU time is limited turn by turn.

    is_alone  whether the run has a user namespace, in which the kernel counts its processes, with that of the sandbox.
              Some more than allowed can start, so that the supervisor sees that there are too many, even if a few of
              them end because the next one is refused
    """
    values = {
        resource.RLIMIT_FSIZE: bounds.file_size,
        resource.RLIMIT_NOFILE: bounds.open_files,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_SIGPENDING: _SIGNALS,
    }
    if not is_session:
        values[resource.RLIMIT_CPU] = int(bounds.cpu_seconds) + 2  # should the supervisor not see it
    if is_alone and _kernel() >= _KERNEL_THAT_COUNTS_PER_NAMESPACE:
        values[resource.RLIMIT_NPROC] = bounds.processes + _MORE_PROCESSES
    for number, value in values.items():
        _, hard = resource.getrlimit(number)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (value, value))
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (_STACK if hard == resource.RLIM_INFINITY else min(_STACK, hard), hard))
    for value in (1, 0):  # 1 also keeps the kernel from starting a program of the host for a core dump
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_CORE, (value, value))
            break


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])


def drop_capabilities() -> None:
    """Give up all capabilities for good, also for programs that this process starts. Raises: OSError."""
    with suppress(OSError):  # until the kernel knows no more of them
        for number in itertools.count():
            prctl(_PR_CAPBSET_DROP, number)
    with suppress(OSError):  # older than Linux 4.3
        prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    capset_empty()


def refuse_privileges() -> None:
    """Let no program that this process executes have more permissions than it. Raises: OSError."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    prctl(_PR_SET_DUMPABLE, 1)  # otherwise it could not read its own files in /proc
