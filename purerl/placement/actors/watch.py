"""Noticing that Ray itself has ended: the raylet of this host, or the control store of the cluster (GCS).

Ray ends the process of a run by itself then. Without its raylet it does so at once, from a thread of C++, and prints
pages of a log; so a second process, which waits for the end of the run, prints the error. Without a control store Ray
waits for a minute; so a thread looks every two seconds whether it can be reached, and the run fails after eight. If the
main thread does not stop within eight seconds more, the thread prints the error and ends the process.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from purerl.errors import EngineError
from purerl.placement.actors.package import load_ray
from purerl.system.terminal import escape

__all__ = ["RayWatch", "check_cluster", "explain_error", "has_lost_cluster", "watched"]

_PERIOD = 2.0  # seconds between two looks
_MAX_UNREACHABLE = 8.0
_CONNECT_TIMEOUT = 2.0
_GRACE = 8.0  # seconds in which the main thread may stop by itself
_STDERR = 2
_PACKAGE = "ray"
_DO = "the same command resumes the run from its last checkpoint"
_REPORTER = """
import os, select, socket, sys
pid, host, port, text, other_text = sys.argv[1:]
raylet = os.pidfd_open(int(pid))
if raylet not in select.select([raylet, 0], [], [])[0]:
    try:
        socket.create_connection((host, int(port)), 2.0).close()
        sys.exit()
    except OSError:
        text = other_text
if not os.read(0, 1):
    os.write(2, text.encode())
"""
"""Wait for the raylet or the run. If the run ends after the raylet or the control store, and has not written a byte to
say that it reports this itself, print the error.
"""

_watches: list[RayWatch] = []  # the last one is that of the run in this process


class RayWatch:
    """Watches the raylet of this host and the control store from `start` to `stop`.

    raylet  process id; None: it is not known
    store   host and port
    log     where more is said, for messages
    """

    def __init__(self, raylet: int | None, store: tuple[str, int], log: Path) -> None:
        self._pid, self._store, self._log = raylet, store, log
        self._raylet: int | None = None
        self._reporter: subprocess.Popen[bytes] | None = None
        self._problem: EngineError | None = None
        self._is_over, self._reached = threading.Event(), time.monotonic()
        self._thread = threading.Thread(target=self._run, name="purerl watch of Ray", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        if self._pid is not None:
            with suppress(OSError):  # it is in another container, or the kernel does not allow it
                self._raylet = os.pidfd_open(self._pid)
        if self._raylet is not None:
            host, port = self._store
            errors = [f"error: {error}\n" for error in (self._raylet_error(), self._store_error("nothing"))]
            command = [sys.executable, "-I", "-S", "-c", _REPORTER, str(self._pid), host, str(port), *errors]
            self._reporter = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._is_over.set()
        self._thread.join()
        self._end_reporter()
        if self._raylet is not None:
            os.close(self._raylet)

    def check(self) -> None:
        """Raise EngineError if Ray has ended."""
        if self._problem is not None:
            raise self._problem

    @property
    def has_ended(self) -> bool:
        """Whether it is known that Ray has ended: then its functions wait in vain."""
        return self._problem is not None

    def explain(self, error: BaseException) -> EngineError | None:
        """The end of Ray, if it has ended and `error` follows from that: it is an error of Ray, or raised after one."""
        if not _is_of_ray(error):
            return None
        if self._problem is None:
            self._problem = self._poll_ray(max_unreachable=0.0)
        return self._problem

    def _run(self) -> None:
        while self._problem is None and not self._is_over.wait(_PERIOD):
            self._problem = self._problem or self._poll_ray(_MAX_UNREACHABLE)
        if self._problem is not None and not self._is_over.wait(_GRACE):
            self._end_reporter()
            os.write(_STDERR, f"{escape(f'error: {self._problem}')}\n".encode())
            os._exit(1)

    def _poll_ray(self, max_unreachable: float) -> EngineError | None:
        has_raylet = self._raylet is None or not select.select([self._raylet], [], [], 0)[0]
        try:
            socket.create_connection(self._store, timeout=_CONNECT_TIMEOUT).close()
        except OSError as error:  # a local Ray ends its raylet when it has no control store
            seconds = time.monotonic() - self._reached
            is_lost = seconds >= max_unreachable or not has_raylet
            return self._store_error(f"nothing for {seconds:.0f} s: {error}") if is_lost else None
        self._reached = time.monotonic()
        return None if has_raylet else self._raylet_error()

    def _raylet_error(self) -> EngineError:
        got = f"process {self._pid} does not exist anymore (was it killed, for example for its memory?)"
        return EngineError("the raylet of this host has ended, and Ray with it", got=got, do=f"see {self._log}; {_DO}")

    def _store_error(self, got: str) -> EngineError:
        host, port = self._store
        what = f"the control store of Ray (GCS), at {host}:{port}, has ended"
        return EngineError(what, got=got, do=f"see {self._log}; {_DO}")

    def _end_reporter(self) -> None:
        """Let the second process print nothing."""
        if self._reporter is not None:
            with suppress(OSError, ValueError):
                self._reporter.communicate(b".")


def _is_of_ray(error: BaseException | None) -> bool:
    """Whether `error`, or one that it follows from, is an error of Ray or raised in its code; not that of a task."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if not isinstance(error, load_ray().exceptions.RayTaskError) and _PACKAGE in (_raiser(error), _of(type(error))):
            return True
        error = error.__cause__ or error.__context__
    return False


def _raiser(error: BaseException) -> str:
    """The package of the function that has raised `error`."""
    frames = [*traceback.walk_tb(error.__traceback__)]
    return str(frames[-1][0].f_globals.get("__name__", "")).partition(".")[0] if frames else ""


def _of(kind: type[BaseException]) -> str:
    return kind.__module__.partition(".")[0]


@contextmanager
def watched(log: Path) -> Iterator[None]:
    """In the block, which is connected to Ray, an end of Ray is an EngineError. `log` has more, for messages."""
    node: Any = load_ray()._private.worker.global_worker.node  # noqa: SLF001 - Ray names no socket of a raylet
    if node is None:  # a client of Ray, which is no part of the cluster
        yield
        return
    host, _, port = node.gcs_address.rpartition(":")
    watch = RayWatch(_listener(node.raylet_socket_name), (host.strip("[]"), int(port)), log)
    watch.start()
    _watches.append(watch)
    try:
        yield
    except Exception as error:
        problem = watch.explain(error)
        if problem is None or problem is error:
            raise
        raise problem from error
    finally:
        _watches.remove(watch)
        watch.stop()


def _listener(name: str) -> int | None:
    """The process that listens at the Unix socket `name`; None where the kernel does not say it."""
    if not hasattr(os, "pidfd_open") or not hasattr(socket, "SO_PEERCRED"):
        return None
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(name)
        return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


def check_cluster() -> None:
    """Raise EngineError if the Ray of the run has ended."""
    for watch in _watches[-1:]:
        watch.check()


def explain_error(error: BaseException) -> EngineError | None:
    """As `RayWatch.explain`, for the Ray of the run."""
    return _watches[-1].explain(error) if _watches else None


def has_lost_cluster() -> bool:
    """Whether it is known that the Ray of the run has ended."""
    return any(watch.has_ended for watch in _watches[-1:])
