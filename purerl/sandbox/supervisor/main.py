"""The entries of the processes of sandboxes: a supervisor, or a zygote, from which supervisors are forked.

A process is started by `exec`, with the environment of programs and without the owner's memory and descriptors. What
the functions return is a program, in the process of the program.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module

from purerl.sandbox.messages import Message, send
from purerl.sandbox.supervisor.cgroups import remove_stale
from purerl.sandbox.supervisor.program import restore_signals
from purerl.sandbox.supervisor.root import find_sources
from purerl.sandbox.supervisor.seccomp import MACHINES, filter_of
from purerl.sandbox.supervisor.spawner import Spawner, serve_spawner
from purerl.sandbox.supervisor.spawners import cgroup_parents
from purerl.sandbox.supervisor.supervise import supervise
from purerl.sandbox.supervisor.syscalls import prctl

__all__ = ["start_supervisor", "start_zygote"]

_PR_SET_PDEATHSIG = 1


def start_supervisor(owner: int, connection: int) -> Callable[[], None]:
    """Be a supervisor for the process `owner`."""
    _begin(owner)
    gc.disable()
    return _supervise(socket.socket(fileno=connection))


def start_zygote(owner: int, connection: int, preload: Sequence[str], read_only: Sequence[str]) -> Callable[[], None]:
    """Import `preload`, and fork a supervisor for each connection that arrives."""
    _begin(owner)
    control = socket.socket(fileno=connection)
    try:
        _import(preload)
    except Exception as error:  # noqa: BLE001 -- a module may raise anything
        send(
            control, Message({"error": {"step": "preload", "errno": None, "text": f"{type(error).__name__}: {error}"}})
        )
        sys.exit(1)
    _prepare_caches(read_only)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects supervisors that have ended
    gc.collect()
    gc.disable()
    gc.freeze()
    send(control, Message({}))
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            _wait_for_children()
            os._exit(0)
        zygote = os.getpid()
        if os.fork() == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _end_with(zygote)
            return _supervise(socket.socket(fileno=descriptors[0]))
        os.close(descriptors[0])


def _wait_for_children() -> None:
    """The owner has closed all connections, so the supervisors end what they run, and then themselves."""
    with suppress(ChildProcessError):
        os.waitpid(-1, 0)  # because SIGCHLD is ignored, it returns when there are none


def _import(names: Sequence[str]) -> None:
    for name in names:
        import_module(name)
        if len(os.listdir("/proc/self/task")) > 1:  # only the thread that forks would exist in the programs
            raise RuntimeError(f"importing {name} starts threads")


def _prepare_caches(read_only: Sequence[str]) -> None:
    """Compute once what is the same for all runs."""
    for has_cgroup in (False, True):
        find_sources(tuple(read_only), with_zero=has_cgroup)
        if os.uname().machine in MACHINES:
            filter_of(os.uname().machine, shared_memory=has_cgroup)


def _supervise(owner: socket.socket) -> Callable[[], None]:
    """Fork the spawner, before anything is known of a run, and supervise runs."""
    ours, theirs = socket.socketpair()
    supervisor = os.getpid()
    pid = os.fork()
    if pid == 0:
        ours.close()
        owner.close()
        _end_with(supervisor)
        return serve_spawner(theirs)
    theirs.close()
    if parents := cgroup_parents():
        remove_stale(parents)
    return supervise(owner, Spawner(pid, ours))


def _begin(owner: int) -> None:
    """Let this process depend on nothing of the one that has started it, but end with it."""
    _end_with(owner)
    restore_signals()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a program that ends before it has read its input must not end this
    os.umask(0o022)


def _end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
