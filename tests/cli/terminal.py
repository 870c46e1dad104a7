"""A command in a terminal: a pseudo-terminal, and a real process."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import time
from collections.abc import Callable, Sequence


def in_terminal(
    command: Sequence[str], hear: Callable[[subprocess.Popen, str], None] = lambda process, said: None
) -> tuple[str, int]:
    """All that `command` says to its terminal, and its exit code.

    `hear` is called with the process and what was said so far, whenever something was.
    """
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    said, end = b"", time.monotonic() + 90
    try:
        while time.monotonic() < end:
            if not select.select([ours], [], [], 0.5)[0]:
                continue
            with contextlib.suppress(OSError):  # nobody is at the other end any more
                if more := os.read(ours, 65536):
                    said += more
                    hear(process, said.decode(errors="replace"))
                    continue
            break
        return said.decode(errors="replace").replace("\r\n", "\n"), process.wait(timeout=10)
    finally:
        process.kill()
        os.close(ours)
