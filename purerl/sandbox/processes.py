"""Starting the processes of sandboxes, in the process of their owner, and talking to them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple

from purerl.errors import ConfigError, SandboxError
from purerl.sandbox.failures import failed
from purerl.sandbox.messages import Message, receive, send
from purerl.sandbox.settings import SandboxSettings
from purerl.system.private_files import private_folder

__all__ = ["FLAGS", "FLAGS_WITHOUT_PACKAGES", "Interpreter", "Process", "ask", "find_interpreter", "hang_up"]

_ROOT = str(Path(__file__).parents[2])  # of the package purerl
_CODE = (
    "import sys; sys.path.insert(0, {root!r}); from purerl.sandbox.supervisor import main as start; "
    "del sys.path[0]; run = start.{function}{arguments!r}; run()"
)
_FACTS = "import sys, json; print(json.dumps([sys.version_info[:2], sys.executable, sys.prefix, sys.base_prefix]))"
_ENVIRONMENT = {
    "HOME": "/sandbox",
    "TMPDIR": "/tmp",  # noqa: S108 - in the sandbox
    "LANG": "C.UTF-8",
    "PYTHONINTMAXSTRDIGITS": "0",  # a program may print integers of any length; its time is limited
    "PYTHONHASHSEED": "0",  # the order of sets, and so the output of a program, is the same in each run
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
_END_SECONDS = 30.0

FLAGS = ("-P", "-s")
"""Of an interpreter that Python programs run in; their environment has the rest."""
FLAGS_WITHOUT_PACKAGES = ("-I", "-S")
"""Of an interpreter that only starts other programs."""


class Interpreter(NamedTuple):
    """A Python interpreter, and the directories that it needs."""

    path: str
    read_only: tuple[str, ...]


@cache
def find_interpreter(path: str | None) -> Interpreter:
    """The interpreter at `path`; None: this one.

    Raises: ConfigError if it cannot be started, or is older than Python 3.11.
    """
    if path is None:
        return _interpreter(sys.executable, (sys.prefix, sys.base_prefix))
    try:
        output = subprocess.run([path, "-c", _FACTS], capture_output=True, check=True, timeout=60).stdout  # noqa: S603 -- of the user
        version, executable, *prefixes = json.loads(output)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        do = "name the interpreter of an environment, such as /opt/env/bin/python"
        raise ConfigError("python", got=f"{path}: {error}", need="a Python interpreter", do=do) from error
    if tuple(version) < (3, 11):
        raise ConfigError("python", got=f"{path}, version {version[0]}.{version[1]}", need="Python 3.11 or later")
    return _interpreter(executable, prefixes)


def _interpreter(executable: str, prefixes: Iterable[str]) -> Interpreter:
    folders = dict.fromkeys([*prefixes, str(Path(executable).resolve().parents[1])])
    return Interpreter(executable, tuple(folder for folder in folders if folder != "/"))


class Process:
    """A process that starts a function of `purerl.sandbox.supervisor.main`. It ends with the thread that makes it.

    connection  a socket to it

    Without layers, programs see the host: their directories are made in a folder of this user.
    """

    def __init__(self, settings: SandboxSettings, function: str, *arguments: Any, flags: tuple[str, ...]):
        if sys.platform != "linux":
            do = "use a remote sandbox: the setting remote"
            raise SandboxError("there is no sandbox on this system", got=sys.platform, need="Linux", do=do)
        interpreter, self._stack = find_interpreter(settings.python).path, ExitStack()
        environment = dict(_ENVIRONMENT)
        if settings.layers == "none":
            environment["TMPDIR"] = str(self._stack.enter_context(private_folder("purerl-sandbox-")))
        self.connection, theirs = socket.socketpair()
        self._errors: IO[bytes] = tempfile.TemporaryFile(prefix="purerl-sandbox-")  # noqa: SIM115 -- closed with it
        code = _CODE.format(root=_ROOT, function=function, arguments=(os.getpid(), theirs.fileno(), *arguments))
        path = f"{Path(interpreter).parent}:/usr/local/bin:/usr/bin:/bin"
        try:
            self._process = subprocess.Popen(  # noqa: S603 -- an interpreter of the user
                [interpreter, *flags, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                cwd="/",
                env={"PATH": path, **environment},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            self.connection.close()
            self._stack.close()
            raise SandboxError("the process of a sandbox cannot be started", got=error) from error
        finally:
            theirs.close()

    def last_words(self) -> str:
        """Its output on stderr: the traceback of an error in it."""
        self._errors.seek(0)
        return self._errors.read(2**16).decode(errors="replace").strip()

    def close(self) -> None:
        """End it, and everything in it."""
        hang_up(self.connection)
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
        self._stack.close()


def hang_up(connection: socket.socket) -> None:
    """Close `connection`. A thread that waits for an answer gets an error at once."""
    with suppress(OSError):  # the other side has ended
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def ask(connection: socket.socket, message: Message | None, seconds: float, last_words: Callable[[], str]) -> Message:
    """Send `message`, and return the answer, which must arrive within `seconds`.

    Raises: SandboxError.
    """
    connection.settimeout(seconds)
    try:
        if message is not None:
            send(connection, message)
        answer = receive(connection)
    except TimeoutError as error:
        raise SandboxError(
            "the supervisor of a sandbox does not answer", got=f"nothing within {seconds:g} s"
        ) from error
    except OSError as error:
        raise SandboxError("the supervisor of a sandbox has ended", got=last_words() or error) from error
    if answer is None:
        raise SandboxError("the supervisor of a sandbox has ended", got=last_words() or "no answer")
    if "error" in answer.header:
        raise failed(**answer.header["error"])
    return answer
