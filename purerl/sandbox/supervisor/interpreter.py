"""Python programs in the interpreter of the sandbox itself, which was forked from a warm one: no second one starts.

`prepare` makes the process look like a new interpreter that runs the file `program.py`. What it returns is called by
the outermost frame, so that tracebacks and the depth of recursion are those of an ordinary program.
"""

from __future__ import annotations

import atexit
import gc
import io
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

from purerl.sandbox.messages import TURN, TURN_ANSWER, Task

__all__ = ["PROGRAM", "prepare"]

PROGRAM = "program.py"
"""The name of the file with the source of a program, in its working directory."""

_STREAMS = (("stdin", "rb", "surrogateescape"), ("stdout", "wb", "strict"), ("stderr", "wb", "backslashreplace"))
_FLUSH_FAILED = 120  # the exit code of Python in this case


def prepare(task: Task, turns: int | None) -> Callable[[], None]:
    """A function that runs the source of `task`, or the code that arrives on the socket `turns`."""
    directory = os.getcwd()
    path = os.path.join(directory, PROGRAM)
    for name in [name for name in sys.modules if name.partition(".")[0] == "purerl"]:
        del sys.modules[name]
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __file__=path)
    sys.argv, sys.orig_argv = [path], [sys.executable, path]
    sys.path.insert(0, directory)
    _open_streams()
    gc.enable()
    if turns is not None:
        os.set_inheritable(turns, False)  # noqa: FBT003 -- has no keyword
        return partial(_serve, main.__dict__, turns)
    with open(path, "wb") as file:
        file.write(task.source)
    return partial(_run, path, task.source, main.__dict__)


def _open_streams() -> None:
    """Make stdin, stdout and stderr those of the program."""
    for k, (name, mode, errors) in enumerate(_STREAMS):
        buffer = open(k, mode, closefd=False)  # noqa: SIM115 -- a descriptor
        stream = io.TextIOWrapper(buffer, "utf-8", errors, line_buffering=k == 2, write_through=k == 2)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _run(path: str, source: bytes, names: dict[str, Any]) -> NoReturn:
    """Run a program as `python program.py` does, and end the process."""
    try:
        exec(compile(source, path, "exec", dont_inherit=True), names)  # noqa: S102 -- what this is for
        code = 0
    except SystemExit as error:
        code = _exit_code(error)
    except BaseException as error:  # noqa: BLE001 -- of the program
        _show(error)
        code = 1
    _end(code)


def _end(code: int) -> NoReturn:
    """End the process as an interpreter does, but leave memory to the kernel: freeing it would copy shared pages."""
    try:
        threading._shutdown()  # noqa: SLF001 # pyright: ignore[reportAttributeAccessIssue] -- waits for threads
        atexit._run_exitfuncs()  # noqa: SLF001 -- likewise
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
    except BaseException as error:  # noqa: BLE001 -- of the program, which may have replaced all of these
        with suppress(BaseException):
            _show(error)
        code = code or _FLUSH_FAILED
    _flush_files()
    os._exit(code & 0xFF)


def _flush_files() -> None:
    """Write what open files still hold, as Python does when it frees them: those of the program, and its streams."""
    files = [*gc.get_objects(), sys.__stdout__, sys.__stderr__]
    for kind in (io.TextIOWrapper, io.BufferedWriter):  # a text is held before its bytes
        for file in files:
            if issubclass(type(file), kind):
                with suppress(BaseException):  # it may be closed or detached
                    file.flush()


def _exit_code(error: SystemExit) -> int:
    """The exit code of a program that calls `sys.exit`; a text is printed, as Python does."""
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    with suppress(AttributeError, ValueError):  # stderr is None or closed
        sys.stderr.write(f"{error.code}\n")
    return 1


def _show(error: BaseException) -> None:
    """Report an exception that was not caught, without the frame of this module."""
    error = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
    sys.excepthook(type(error), error, error.__traceback__)


def _serve(names: dict[str, Any], turns: int) -> NoReturn:
    """Run the code that arrives on the socket, each time with the variables of the times before."""
    is_running = False

    def interrupt(number: int, frame: object) -> None:
        if is_running:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    for number in itertools.count(1):
        size, token = TURN.unpack(_read(turns, TURN.size))
        source = _read(turns, size)
        try:
            is_running = True
            code = _run_cell(source, f"<cell {number}>", names)
        except KeyboardInterrupt:  # it came just before the end
            code = 1
        finally:
            is_running = False
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os.write(turns, TURN_ANSWER.pack(token, code))
    raise AssertionError


def _read(turns: int, size: int) -> bytes:
    parts = []
    while size > 0:
        part = os.read(turns, min(size, 2**20))
        if not part:
            os._exit(0)  # the session is over
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _run_cell(source: bytes, name: str, names: dict[str, Any]) -> int:
    """Run code, and print the value of its last line if that is an expression. Returns its exit code."""
    import ast
    import linecache
    import traceback

    try:
        text = source.decode()
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        tree = ast.parse(text, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec", dont_inherit=True), names)  # noqa: S102 -- what this is for
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), names)  # noqa: S307
            if value is not None:
                sys.stdout.write(f"{value!r}\n")
    except SystemExit as error:
        return _exit_code(error)
    except BaseException as error:  # noqa: BLE001 -- of the program
        traceback.print_exception(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))
        return 1
    return 0
