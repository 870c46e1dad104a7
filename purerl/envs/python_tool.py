"""A tool that runs Python programs which the model writes: `python`.

Each call is a new process with a new interpreter, so no variables remain. It has a limit of time and a limit of memory,
and starts in an empty directory, without the environment variables of the run. This protects a run from programs that
do not end or that fill the memory. **It is no sandbox.** A program has all permissions of your user: it can read, write
and delete files, and use the network. Use it where this is acceptable, for example in a container.

For other limits, name a function of your own as the tool, which calls `run_program`.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

__all__ = ["python", "run_program"]

_RUNNER = Path(__file__).with_name("python_runner.py")
_INHERITED = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # each thread of them reserves memory


def python(code: str) -> str:
    """Run a Python program, and return what it prints and the value of its last line. No variables are kept.

    Args:
        code: the program
    """
    return run_program(code)


def run_program(code: str, *, timeout: float = 10.0, max_memory: int = 1024, max_characters: int = 1000) -> str:
    """What the program `code` prints, with the value of its last line if that is an expression, and its traceback.

    timeout         seconds after which it is killed, with the processes of its session. A process that has left the
                    session ends with the worker process in which this function is called
    max_memory      MiB of address space of each of its processes, on Linux. Other systems have no limit
    max_characters  of the result; the middle of a longer one is left out
    """
    with tempfile.TemporaryDirectory(prefix="purerl-python-") as folder, tempfile.TemporaryFile() as output:
        Path(folder, "program.py").write_text(code, encoding="utf-8", errors="replace")
        # One second of CPU time more than wall time: a busy thread must not reach both limits at once.
        limits = [str(max_memory), str(math.ceil(timeout) + 1)]
        process = subprocess.Popen(  # noqa: S603 -- this interpreter
            [sys.executable, "-I", "-u", str(_RUNNER), *limits],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            env=_environment(folder),
            start_new_session=True,
        )
        end = _end(process, timeout)
        text = "\n".join(filter(None, [_read(output), end]))
    return _shortened(text, max_characters) or "(no output)"


def _environment(folder: str) -> dict[str, str]:
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {**inherited, **_ONE_THREAD, "HOME": folder, "TMPDIR": folder}


def _end(process: subprocess.Popen[bytes], timeout: float) -> str:
    """Wait for the end of `process`, and end its session. Returns an error if it was killed."""
    try:
        code = process.wait(timeout)
    except subprocess.TimeoutExpired:
        return f"Error: the program did not end within {timeout:g} seconds"
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return f"Error: the program was ended by {signal.Signals(-code).name}" if code < 0 else ""


def _read(output: BinaryIO) -> str:
    output.seek(0)
    return output.read().decode(errors="replace").strip("\n")


def _shortened(text: str, length: int) -> str:
    r"""`text` without its middle if it has more than `length` characters.

    >>> _shortened("0123456789", 4)
    '01\n... 6 characters are left out ...\n89'
    """
    if len(text) <= length:
        return text
    half = length // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters are left out ...\n{text[len(text) - half :]}"
