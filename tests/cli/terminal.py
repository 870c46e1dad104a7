"""Run a command in a pseudo-terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from tests.forks import PROGRAMS

__all__ = ["purerl_in_terminal", "run_in_terminal"]

_TIMEOUT = 90.0


def purerl_in_terminal(*arguments: object) -> tuple[str, int]:
    """The output of ``purerl`` in a pseudo-terminal for these arguments, and its exit status. It is forked."""
    return run_in_terminal([sys.executable, "-m", "purerl_cli", *map(str, arguments)])


def run_in_terminal(
    command: Sequence[str],
    on_output: Callable[[subprocess.Popen, str], None] = lambda process, output: None,
    start: type[subprocess.Popen] = PROGRAMS.Popen,
    typed: Sequence[tuple[str, str]] = (),
) -> tuple[str, int]:
    """Run `command` in a process with a pseudo-terminal. Return everything that it prints, and its exit status.

    `on_output` is called with the process and all output so far, whenever there is new output. `start` is
    `subprocess.Popen` if the process must not be forked. Of each pair in `typed`, the second text is typed when the
    output ends with the first one.
    """
    own_end, process_end = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    process = start(command, stdin=process_end, stdout=process_end, stderr=process_end, env=environment)
    os.close(process_end)
    output, deadline, waiting = b"", time.monotonic() + _TIMEOUT, [*typed]
    try:
        while True:
            text = output.decode(errors="replace").replace("\r\n", "\n")
            assert time.monotonic() < deadline, f"the command did not exit; its last output: {text[-3000:]!r}"
            if not select.select([own_end], [], [], 0.5)[0]:
                continue
            with contextlib.suppress(OSError):  # the process has closed its end
                if new_output := os.read(own_end, 65536):
                    output += new_output
                    on_output(process, output.decode(errors="replace"))
                    if waiting and output.decode(errors="replace").endswith(waiting[0][0]):
                        os.write(own_end, waiting.pop(0)[1].encode())
                    continue
            return text, process.wait(timeout=10)
    finally:
        process.kill()
        os.close(own_end)
