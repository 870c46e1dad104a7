"""The parent process of one worker. It ends the worker and every process that the worker has started.

    run -> guard -> worker -> processes that reward functions or environments have started

The guard stops when its worker ends, when the run shuts the connection down, or when the run ends, also if the run was
killed. It then kills all descendants before it exits. On Linux it is a subreaper: a process whose parent ends becomes a
child of the guard, even if it has a session of its own, so no descendant is lost. If the guard itself is killed, the
kernel kills the worker. On other systems only the process group of the worker is killed.

Guard and worker do nothing on SIGTERM and SIGUSR1, which schedulers send to every process of a job: the run decides
when it stops, and needs its workers until then.

The guard imports no code of users and has no threads, so that it can fork.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from purerl.system.terminal import escape_output

__all__ = ["main"]

_STOP_SIGNALS = (signal.SIGHUP, signal.SIGINT)
_SIGNALS_OF_JOBS = (signal.SIGTERM, signal.SIGUSR1)
_POLL = 1.0  # seconds between checks whether the run has ended, in case the connection stays open in another process
_MAX_SECONDS_TO_END = 10.0
_SECONDS_TO_CLEAN_UP = 3.0  # for Python's resource trackers
_KILL_POLL = 0.002  # seconds between searches for remaining descendants: they become children when their parents end
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main(run: int, connection: int, sentinel: int, status: int, max_memory: int | None, work: str) -> NoReturn:
    """Start the worker, wait until it has to end, and end all of its descendants.

    run         process id of the run
    connection  file descriptor of the socket on which the worker communicates with the run
    sentinel    file descriptor of a pipe, on which the guard writes the exit code of the worker
    status      file descriptor of the status file of the worker
    max_memory  memory limit of the worker in MiB, or None
    work        what the worker does, as module:function; it is called with (connection, status)
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    stopped: list[int] = []
    wakeup = _wake_up_on_signals(stopped)
    guard = os.getpid()
    worker = os.fork()
    if worker == 0:
        _work(guard, connection, status, max_memory, work, unused=(sentinel, *wakeup))
    poller = select.poll()
    poller.register(wakeup[0], select.POLLIN)
    poller.register(connection, 0)  # reports only that the run has shut the connection down, or closed its end
    exit_code = None
    while exit_code is None and not stopped and os.getppid() == run:
        events = dict(poller.poll(_POLL * 1000))
        with suppress(BlockingIOError):
            os.read(wakeup[0], 4096)
        exit_code = dict(_reap()).get(worker)
        if connection in events:
            break
    exit_code = _end_descendants(worker, exit_code)
    with suppress(OSError):
        os.write(sentinel, str(exit_code).encode())
    os._exit(0)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _wake_up_on_signals(stopped: list[int]) -> tuple[int, int]:
    """A pipe that becomes readable with each signal. Signals that stop the guard are appended to `stopped`."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    for number in _STOP_SIGNALS:
        signal.signal(number, lambda number, frame: stopped.append(number))
    for number in _SIGNALS_OF_JOBS:
        signal.signal(number, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    return read, write


def _reap() -> Iterator[tuple[int, int]]:
    """The process ids and exit codes of the children that have ended."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, os.waitstatus_to_exitcode(status)


def _end_descendants(worker: int, exit_code: int | None) -> int | None:
    """Kill the worker and all of its descendants; return the exit code of the worker.

    The children of a process that is killed become children of the guard, so killing the children until there are none
    reaches all descendants. Python's resource trackers may end by themselves when the others have ended, because they
    then remove shared memory and semaphores that processes which are killed leave in /dev/shm.
    """
    if sys.platform != "linux":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(worker, signal.SIGKILL)
    if exit_code is None:
        os.kill(worker, signal.SIGKILL)  # it is at most a zombie, because it has not been reaped
    begin = time.monotonic()
    while (seconds := time.monotonic() - begin) < _MAX_SECONDS_TO_END and _has_children():
        for pid in _children():
            if seconds < _SECONDS_TO_CLEAN_UP and _is_resource_tracker(pid):
                continue
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        exit_code = dict(_reap()).get(worker, exit_code)
        time.sleep(_KILL_POLL)
    return exit_code


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _children() -> Iterator[int]:
    """The process ids of the children of this process. Without /proc there are none."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            _, parent = path.read_bytes().rpartition(b")")[2].split()[:2]
            if int(parent) == os.getpid():
                yield int(path.parent.name)


def _is_resource_tracker(pid: int) -> bool:
    with suppress(OSError):
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _work(
    guard: int, connection: int, status: int, max_memory: int | None, work: str, *, unused: tuple[int, ...]
) -> NoReturn:
    """Become the worker: a process in a session of its own, which is killed if the process `guard` is killed.

    Processes that the code in the worker starts end on the signals of jobs, as usual.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, *_STOP_SIGNALS):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.register_at_fork(after_in_child=_end_on_signals_of_jobs)
    for descriptor in unused:
        os.close(descriptor)
    for descriptor in (connection, status):
        os.set_inheritable(descriptor, False)  # noqa: FBT003 -- has no keyword
    os.setsid()
    escape_output()  # what the code of users prints may come from a model
    exit_code = 1
    try:
        if max_memory is not None:
            _limit_memory(max_memory * 2**20)
        module, _, function = work.partition(":")
        call = getattr(import_module(module), function)
        if os.getppid() == guard:
            call(connection, status)
            exit_code = 0
    except BaseException:  # noqa: BLE001 -- a forked process must not return
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(exit_code)


def _end_on_signals_of_jobs() -> None:
    for number in _SIGNALS_OF_JOBS:
        signal.signal(number, signal.SIG_DFL)


def _limit_memory(size: int) -> None:
    """Limit the data memory of this process to `size` bytes, or to less if that is its limit already."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
