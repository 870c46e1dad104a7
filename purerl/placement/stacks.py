"""Stacks of all processes of a run on request, also of one that hangs.

While a process of a run works, it has a file ``ranks/NAME.stacks`` in the run directory, and looks every second for a
request there. It answers with the stacks of all its threads. Only the directory is needed, so ranks and actors on other
hosts answer too. A process whose C extension hangs and holds Python's lock (the GIL) cannot answer.
"""

from __future__ import annotations

import faulthandler
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from attrs import frozen

from purerl.errors import InputError
from purerl.placement.logs import log_path
from purerl.system.files import write_atomically

__all__ = ["Stacks", "forget", "request_stacks", "serve_stack_requests", "start_stack_thread"]

_PERIOD = 1.0  # seconds between two looks for a request
_POLL = 0.05
_REQUEST, _SUFFIX = "stacks.request", ".stacks"
_PLACE = "process {} on {}"
_ASKED, _DONE = "--- request {}\n", "--- end of {}\n"


@frozen
class Stacks:
    """The answer of a process.

    name   "run", the number of a rank, or the name of an actor
    place  its process and host
    text   the stacks; None if it did not answer
    """

    name: str
    place: str
    text: str | None


@contextmanager
def serve_stack_requests(directory: Path, name: int | str) -> Iterator[None]:
    """Answer requests to the process `name` of the run in `directory`, in the time of the block."""
    is_over = Event()
    thread = start_stack_thread(directory, name, is_over)
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        forget(directory, name)


def forget(directory: Path, name: int | str) -> None:
    """Remove the file of the process `name`, which answers no more."""
    path = _path(directory, name)
    path.unlink(missing_ok=True)
    with suppress(OSError):  # it has logs
        path.parent.rmdir()


def start_stack_thread(directory: Path, name: int | str, is_over: Event) -> Thread:
    """Start a thread that answers requests until `is_over`."""
    path = _path(directory, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_PLACE.format(os.getpid(), socket.gethostname()) + "\n", encoding="utf-8")
    before = _read(path.with_name(_REQUEST))
    thread = Thread(target=_answer, args=(path, before, is_over), name="purerl stacks on request", daemon=True)
    thread.start()
    return thread


def _answer(path: Path, before: str, is_over: Event) -> None:
    while not is_over.wait(_PERIOD):
        request = _read(path.with_name(_REQUEST))
        if request not in ("", before):
            before = request
            with suppress(OSError), path.open("a", encoding="utf-8") as file:
                file.write(_ASKED.format(request))
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)
                file.write(_DONE.format(request))


def request_stacks(directory: Path, timeout: float) -> list[Stacks]:
    """The stacks of all processes of the run in `directory`. It waits at most `timeout` seconds for them.

    Raises: InputError if there is no process.
    """
    folder = _path(directory, "run").parent
    paths = [path for path in sorted(folder.glob(f"*{_SUFFIX}")) if not _has_ended(path)]
    if not paths:
        got = "no process that works on it" if directory.is_dir() else "no such directory"
        need = "the directory of a run in progress"
        raise InputError(f"no run in progress in {str(directory)!r}", got=got, need=need)
    request = str(time.time_ns())
    write_atomically(folder / _REQUEST, request)
    deadline = time.monotonic() + timeout
    try:
        while time.monotonic() < deadline and not all(_done(path, request) for path in paths):
            time.sleep(_POLL)
        return [_stacks(path, request) for path in paths]
    finally:
        (folder / _REQUEST).unlink(missing_ok=True)


def _stacks(path: Path, request: str) -> Stacks:
    place, _, rest = _read(path).partition("\n")
    answer = rest.partition(_ASKED.format(request))[2].partition(_DONE.format(request))[0]
    return Stacks(path.name.removesuffix(_SUFFIX), place, answer if _done(path, request) and path.exists() else None)


def _done(path: Path, request: str) -> bool:
    return _DONE.format(request) in _read(path) or _has_ended(path)


def _has_ended(path: Path) -> bool:
    """Whether the process has ended. One on another host counts as running as long as its file exists."""
    words = _read(path).partition("\n")[0].split()
    if len(words) != len(_PLACE.split()):
        return True
    try:
        if words[-1] == socket.gethostname():
            os.kill(int(words[1]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # it runs, for another user
        pass
    return False


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _path(directory: Path, name: int | str) -> Path:
    return log_path(directory, name).with_suffix(_SUFFIX)
