"""Starting a worker process, communicating with it, and ending it, in the process of the run."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.spawn import get_command_line
from pathlib import Path
from typing import Any, NamedTuple

from purerl.errors import EngineError
from purerl.system.workers.connection import Answers, pack_request
from purerl.system.workers.status import AWAITED, IDLE

__all__ = ["Death", "Worker", "end_all"]

_START_TIMEOUT = 600.0  # seconds in which a worker must have loaded its code
_MESSAGE_TIMEOUT = 60  # seconds in which a message must be sent completely
_MAX_READ = 2**16  # bytes that are received at once
_END_TIMEOUT = 15.0  # seconds until a guard that does not end is killed
_HIDDEN_FILES = ("/multiprocessing/", "/asyncio/", "/concurrent/", "/threading.py", "<string>")
_CODE = "import sys; sys.path[:] = {path!r}; from purerl.system.workers.guard import main; main({arguments})"


class Death(NamedTuple):
    """The end of a worker.

    index         what it has written into its status file; rewards: index of the input that it was scoring, or `IDLE`
    is_awaiting   whether its watchdog was waiting for an awaitable that started earlier, and not for this call
    is_timed_out  whether its watchdog ended it
    stack         in this case, the stack of the code that it was running
    exit_code     of the process; minus the number of a signal
    invalid       what is wrong with what it has sent, if it was ended because of that
    """

    index: int
    is_awaiting: bool
    is_timed_out: bool
    stack: str
    exit_code: int | None
    invalid: str = ""


class Worker:
    """A worker process with its guard, see `purerl.system.workers.guard`. It loads what it needs in the background.

    work            what the process does, as module:function; it is called with the file descriptors of the connection
                    and of the status file
    first           the first request that it gets
    answer          the type of what it sends, as an annotation
    internal_files  ends of the names of files whose frames are left out of stacks

    is_ready  whether it has sent an answer; set by `receive`
    deadline  when the next answer must have arrived, in ``time.monotonic()``
    """

    def __init__(
        self, work: str, first: Any, *, max_memory: int | None, answer: Any = None, internal_files: tuple[str, ...] = ()
    ):
        self.answers = Answers(answer)
        self._internal_files, self._invalid = internal_files, ""
        self._status = tempfile.TemporaryFile(prefix="purerl-worker-")  # noqa: SIM115 -- open until the worker has ended
        self.connection, theirs = socket.socketpair()
        for end in (self.connection, theirs):
            end.settimeout(None)  # whatever default a library has set
        self.sentinel, sentinel = os.pipe()
        os.set_blocking(self.sentinel, False)
        descriptors = (theirs.fileno(), sentinel, self._status.fileno())
        arguments = ", ".join(map(repr, (os.getpid(), *descriptors, max_memory, work)))
        code = _CODE.format(path=[path or str(Path.cwd()) for path in sys.path], arguments=arguments)
        # The session of its own keeps Ctrl-C in a terminal away from the guard and the worker.
        self._guard = subprocess.Popen(  # noqa: S603 -- this interpreter
            [sys.executable, *get_command_line()[1:-3], "-c", code],  # with its flags, such as -O and -X utf8
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        os.close(sentinel)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _MESSAGE_TIMEOUT, 0))
        self.is_ready, self.deadline = False, time.monotonic() + _START_TIMEOUT
        self.send(first, seconds=_START_TIMEOUT)

    def send(self, request: Any, *, seconds: float) -> None:
        """Send `request`; the answer must arrive within `seconds`. It is lost if the process has ended."""
        self.deadline = time.monotonic() + seconds
        data = pack_request(request)
        with suppress(ConnectionError, BlockingIOError):
            self.connection.sendall(data)

    def receive(self) -> list[Any]:
        """The answers that have arrived completely; without waiting. A worker that sends anything else is ended."""
        answers: list[Any] = []
        try:
            data = self.connection.recv(_MAX_READ, socket.MSG_DONTWAIT)
            for answer in self.answers.read(data):
                answers.append(answer)  # noqa: PERF402 -- those before an invalid one count
            if not data:
                self.terminate()
        except BlockingIOError:
            pass
        except ConnectionError:
            self.terminate()
        except EngineError as error:
            self.refuse(error)
        self.is_ready = self.is_ready or bool(answers)
        return answers

    def refuse(self, error: Exception) -> None:
        """End the worker, because `error` says what is wrong with what it has sent."""
        self._invalid = self._invalid or str(error)
        self.terminate()

    @property
    def pid(self) -> int:
        """The process id of the guard."""
        return self._guard.pid

    def index(self) -> int:
        """Index of the input that it is scoring, or `AWAITING` or `IDLE`: as it says, so it may be any number."""
        return _to_int(os.pread(self._status.fileno(), 8, 0), IDLE)

    def terminate(self) -> None:
        """Let the guard end all processes, without waiting for it.

        No signal is sent: until the guard handles signals, it would be lost if the run ignores it, as under nohup.
        """
        with suppress(OSError):  # it has ended already
            self.connection.shutdown(socket.SHUT_RDWR)

    def end(self) -> Death:
        """End all processes, and release what belongs to them."""
        self.terminate()
        try:
            self._guard.wait(_END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        written = b""
        with suppress(BlockingIOError):
            written = os.read(self.sentinel, 16)
        exit_code = _to_int(written, self._guard.returncode)
        status, _, stack = os.pread(self._status.fileno(), 2**20, 0).decode(errors="replace").partition("\n")
        os.close(self.sentinel)
        self.connection.close()
        self._status.close()
        index, frames = _to_int(status[:8], IDLE), self._user_frames(stack)
        return Death(index, status[8:] == AWAITED, bool(stack), frames, exit_code, self._invalid)

    def _user_frames(self, stack: str) -> str:
        """The frames of the users' code in a stack dump, without the frames of the worker."""
        hidden = (*_HIDDEN_FILES, *self._internal_files)
        lines = stack.splitlines(keepends=True)
        return "".join(line for line in lines if line.startswith("  File") and not any(name in line for name in hidden))


def _to_int(written: bytes | str, default: int) -> int:
    """The number that another process has `written`; `default`, if it is none."""
    try:
        return int(written)
    except ValueError:
        return default


def end_all(workers: Iterable[Worker]) -> None:
    """End all `workers` at the same time."""
    workers = list(workers)
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.end()
