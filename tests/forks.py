"""Processes of Python that are forked from one that has imported what they need, instead of started.

A new process of Python that imports torch takes two seconds of a core, and a forked one some hundredths. `Forks.Popen`
and `Forks.run` take the arguments of `subprocess.Popen` and `subprocess.run`. The processes are children of the process
that calls them, as if it had started them, with `-c CODE`, `-m MODULE` or a file, and with their own environment,
working directory, file descriptors and session. Some things differ, and a test of them needs a process that is started:
what the imported modules have read from the environment, the hash seed, which modules are loaded at first, flags of the
interpreter, and the command line in /proc. So each kind of process also has a test in which it is started.

    test process -> server, which has imported the modules -> a process that ends at once -> the new process

When a process ends, its children get another parent: the nearest subreaper above it. So the test process becomes one
for a moment, and the new process becomes its child.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.spawn import get_command_line
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

__all__ = ["PROGRAMS", "TORCH", "WORKERS", "Forks", "execute", "serve"]

_PR_SET_CHILD_SUBREAPER = 36
_LENGTH = 8
_FIRST_FREE = 512  # file descriptors above it are in no request
_SERVER = """
import sys
sys.path[:] = {path!r}
from tests.forks import execute, serve
execute(serve(int(sys.argv[1]), sys.argv[2:]))
"""
_WORKERS = "purerl.system.workers.processes"
"""The module that starts workers of rewards and environments by `subprocess`."""


class Forks:
    """Processes that are forked from one that has imported `modules`, which starts when the first is needed.

    modules     the names of the modules
    base        starts the server: it has imported some of the modules
    Popen       the class `subprocess.Popen`, except that it forks
    subprocess  the module `subprocess` with this class, for `monkeypatch.setattr(module, "subprocess", ...)`

    If `modules` has the one that starts workers, the workers of these processes are forked too.
    """

    def __init__(
        self, *modules: str, base: Forks | ModuleType = subprocess, connection: socket.socket | None = None
    ) -> None:
        self.modules = modules
        self._base = base
        self._connection = connection
        self._owner = os.getpid()
        self._lock = threading.Lock()
        # Only Linux has subreapers. Elsewhere processes are started.
        self.Popen = type("Popen", (_Popen,), {"forks": self}) if sys.platform == "linux" else subprocess.Popen
        self.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": self.Popen, "run": self.run})

    def run(
        self, command: list[str], *, timeout: float = 600.0, check: bool = False, input: Any = None, **options: Any
    ) -> subprocess.CompletedProcess:
        """As `subprocess.run`."""
        if options.pop("capture_output", False):
            options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        if input is not None:
            options["stdin"] = subprocess.PIPE
        with self.Popen(command, **options) as process:
            try:
                output, error = process.communicate(input, timeout=timeout)
            except BaseException:
                process.kill()
                raise
        done = subprocess.CompletedProcess(command, process.returncode, output, error)
        if check:
            done.check_returncode()
        return done

    def fork(self, request: Mapping[str, Any], descriptors: list[int]) -> int:
        """The process id of a new process, which is a child of this one and has these file descriptors."""
        with self._lock:
            connection = self._open()
            with _subreaper():
                return self._request(connection, request, descriptors)

    def _request(self, connection: socket.socket, request: Mapping[str, Any], descriptors: list[int]) -> int:
        _send(connection, json.dumps(request).encode())
        socket.send_fds(connection, [b"."], descriptors)
        answer = connection.recv(_LENGTH)
        if len(answer) < _LENGTH:
            raise RuntimeError(f"the process that has imported {', '.join(self.modules)} has ended")
        return int.from_bytes(answer, "little")

    def _open(self) -> socket.socket:
        if self._connection is None or self._owner != os.getpid():  # a process that was forked has no server
            self._connection, theirs = socket.socketpair()
            self._owner = os.getpid()
            code = _SERVER.format(path=sys.path)
            command = [sys.executable, *_own_flags(), "-c", code, str(theirs.fileno()), *self.modules]
            server = self._base.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
            theirs.close()
            atexit.register(self._close, self._connection, server, os.getpid())
        return self._connection

    @staticmethod
    def _close(connection: socket.socket, server: subprocess.Popen, owner: int) -> None:
        if owner == os.getpid():
            connection.close()
            server.wait(60.0)


class _Popen(subprocess.Popen):
    """`subprocess.Popen`, except for the method that starts the process."""

    forks: Forks

    def _execute_child(  # type: ignore[override]
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite,
        restore_signals, gid, gids, uid, umask, start_new_session, process_group,
    ) -> None:  # fmt: skip
        assert args[0] == sys.executable
        assert not any((preexec_fn, shell, gid, gids, uid)), "needs a process that is started"
        assert (executable, umask, process_group) == (None, -1, -1) or executable == args[0], "likewise"
        standard = [given if given != -1 else k for k, given in enumerate((p2cread, c2pwrite, errwrite))]
        flags, given = _own_flags(), [os.fspath(each) for each in args[1:]]
        request = {
            "arguments": given[len(flags) :] if given[: len(flags)] == flags else given,
            "environment": dict(os.environ if env is None else env),
            "directory": str(Path(cwd or ".").absolute()),
            "session": bool(start_new_session),
            "descriptors": [0, 1, 2, *map(int, pass_fds)],
        }
        try:
            self.pid = self.forks.fork(request, [*standard, *map(int, pass_fds)])
            self._child_created = True
        finally:
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


WORKERS = Forks("purerl.system.workers.guard", "purerl.rewards.worker", "purerl.envs.worker", "httpx")
"""Workers of rewards and environments: two milliseconds of a core for each, instead of 200."""

TORCH = Forks("torch")
"""Programs that must not have imported purerl: 40 milliseconds of a core, instead of 1.5 seconds."""

PROGRAMS = Forks(
    "torch", "purerl.loop.train", "purerl_cli.main", "purerl.recipes.addition", "purerl.explain.comparison",
    "purerl.backends.fake",
    "rich.console", "rich.live", "typer.rich_utils", "typer._adapters", "pydantic.main", "pyarrow.parquet",
    "transformers.models.qwen3.modeling_qwen3",
    "purerl.system.workers.processes", "purerl.system.workers.guard", "purerl.rewards.worker", "purerl.envs.worker",
    base=TORCH,
)  # fmt: skip
"""Commands, ranks, and programs that train: 40 milliseconds of a core, instead of two to five seconds."""


@contextmanager
def _subreaper() -> Iterator[None]:
    """Let processes without a parent become children of this process."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _own_flags() -> list[str]:
    """The flags of this interpreter, as `multiprocessing` passes them to the processes that it starts."""
    return get_command_line()[1:-3]


def _send(connection: socket.socket, data: bytes) -> None:
    connection.sendall(len(data).to_bytes(_LENGTH, "little") + data)


def _receive(connection: socket.socket) -> bytes:
    """The next message; b"" if the other end is closed."""
    size = int.from_bytes(connection.recv(_LENGTH, socket.MSG_WAITALL), "little")
    return connection.recv(size, socket.MSG_WAITALL) if size else b""


# --- in the server -----------------------------------------------------------------------------------------------


def serve(descriptor: int, modules: list[str]) -> dict[str, Any]:
    """Import `modules`, and fork a process for each request. In such a process, return its request."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    request = _fork_for_requests(socket.socket(fileno=descriptor))
    if _WORKERS in modules:
        _fork_workers()
    return request


def _fork_for_requests(connection: socket.socket) -> dict[str, Any]:
    while data := _receive(connection):
        _, received, _, _ = socket.recv_fds(connection, 1, 64)
        waits, goes = os.pipe()
        numbers, number = os.pipe()
        if (between := os.fork()) == 0:
            if pid := os.fork():
                os.write(number, pid.to_bytes(_LENGTH, "little"))
                os._exit(0)
            connection.close()
            os.close(goes)
            os.read(waits, 1)  # until the process in between has ended, and the parent is the one with the request
            return _become(json.loads(data), received)
        os.waitpid(between, 0)
        connection.sendall(os.read(numbers, _LENGTH))
        for each in (*received, waits, goes, numbers, number):
            os.close(each)
    os._exit(0)


def _become(request: dict[str, Any], received: list[int]) -> dict[str, Any]:
    """Let this process have what its request says: file descriptors, session, directory, environment, signals."""
    kept = [fcntl.fcntl(each, fcntl.F_DUPFD, _FIRST_FREE) for each in received]
    os.closerange(0, _FIRST_FREE)
    for each, target in zip(kept, request["descriptors"], strict=True):
        os.dup2(each, target)
    os.closerange(_FIRST_FREE, _FIRST_FREE + 2 * len(kept))
    if request["session"]:
        os.setsid()
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if measured := "coverage" in sys.modules and sys.modules["coverage"].Coverage.current():
        measured.switch_context(os.environ.get("PYTEST_CURRENT_TEST", ""))  # of `benchmarks.mutants cover`
    return request


def _fork_workers() -> None:
    """Let a server that is forked from this process fork the workers that this process starts."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)  # or who reads what this process writes would wait for the server too
        execute(_fork_for_requests(theirs))
    theirs.close()
    importlib.import_module(_WORKERS).subprocess = Forks(connection=ours).subprocess


def execute(request: dict[str, Any]) -> NoReturn:
    """Do what Python does with these arguments, and end as it does, except that objects are not destroyed first."""
    status = 0
    try:
        _run(request["arguments"], request["directory"])
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
        if not isinstance(exit_.code, int | None):
            sys.stderr.write(f"{exit_.code}\n")
    except BaseException as error:  # noqa: BLE001 -- a program may end with any
        sys.excepthook(*sys.exc_info())
        status = 1
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        threading._shutdown()  # type: ignore[attr-defined] -- waits for threads that are not daemons
        atexit._run_exitfuncs()
        for stream in filter(None, (sys.stdout, sys.stderr)):
            try:
                stream.flush()
            except (OSError, ValueError):  # closed
                status = status or 120
        os._exit(status & 0xFF)


def _run(arguments: list[str], directory: str) -> None:
    """Run `-c CODE`, `-m MODULE` or a file, with arguments of the program."""
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    if arguments[0] == "-u":
        unbuffered, arguments = True, arguments[1:]
    _open_standard_streams(unbuffered=unbuffered)
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:0] = [path for path in paths if path not in sys.path]
    match arguments:
        case ["-c", code, *rest]:
            sys.argv, sys.path[:0] = ["-c", *rest], [""]
            exec(compile(code, "<string>", "exec"), sys.modules["__main__"].__dict__)
        case ["-m", module, *rest]:
            sys.argv, sys.path[:0] = ["-m", *rest], [directory]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [path, *rest] if not path.startswith("-"):
            sys.argv, sys.path[:0] = [path, *rest], [str(Path(path).parent.absolute())]
            runpy.run_path(path, run_name="__main__")
        case _:
            raise ValueError(f"{arguments} need a process that is started")


def _open_standard_streams(*, unbuffered: bool) -> None:
    """As a new interpreter does, because it depends on whether they are terminals."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            raw = io.FileIO(number, mode, closefd=False)
        except OSError:  # it is closed
            setattr(sys, name, None)
            continue
        lines = number == 2 or raw.isatty()
        buffered = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
        errors = ("strict", "strict", "backslashreplace")[number]
        options = {"write_through": unbuffered, "line_buffering": lines} if mode == "w" else {}
        stream = io.TextIOWrapper(buffered, encoding="utf-8", errors=errors, **options)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
