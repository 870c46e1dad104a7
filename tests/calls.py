"""The number of function calls in a process of Python: a measure of its work that is the same on every computer."""

from __future__ import annotations

import subprocess
import sys

__all__ = ["COMMAND", "calls"]

COMMAND = "from purerl_cli.main import main; main()"
"""The command `purerl`, with the arguments of the process."""

_COUNT = """
import atexit, os, sys
count = 0
def add(frame, event, argument):
    global count
    count += 1
def report():
    sys.setprofile(None)
    os.write(2, f"CALLS {count}".encode())
atexit.register(report)
sys.setprofile(add)
"""


def calls(code: str, *arguments: str, status: int = 0) -> int:
    """The calls, and the returns, of a process that runs `code` with `arguments`; its exit status must be `status`.

    Functions of C count if Python calls them, and threads do not count.
    """
    process = subprocess.run(
        [sys.executable, "-c", _COUNT + code, *arguments], capture_output=True, text=True, check=False
    )
    assert process.returncode == status, process.stderr
    return int(process.stderr.rpartition("CALLS ")[2])
