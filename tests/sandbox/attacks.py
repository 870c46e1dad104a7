"""Tools of the attack tests: limits, a pool for each way to measure, and a look for processes that remain."""

from __future__ import annotations

import json
import os
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from purerl.sandbox import Limits, Pool, Result, SandboxSettings
from purerl.sandbox.supervisor.spawners import cgroup_parents

__all__ = [
    "ACCOUNTINGS",
    "LIMITS",
    "PRELUDE",
    "marked",
    "marker",
    "open_pool",
    "processes_with",
    "report",
    "wait_until_gone",
]

ACCOUNTINGS = ("cgroups", "sampling") if cgroup_parents() else ("sampling",)
"""Ways to measure memory and processes here, for this user."""

LIMITS = Limits(
    timeout=20, max_memory=128, max_processes=20, max_output=10_000, max_disk=16, max_files=50, max_file_size=8
)
"""The timeout is long, so that a busy computer is not mistaken for a limit that works."""

PRELUDE = """
import ctypes, errno, json, os, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(function, *arguments):
    '''"done", or the name of the error.'''
    try:
        function(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    except Exception as error:
        return type(error).__name__
    return "done"
def call(number, *arguments):
    if libc.syscall(*(ctypes.c_long(x) if isinstance(x, int) else x for x in (number, *arguments))) < 0:
        raise OSError(ctypes.get_errno(), "")
"""


def open_pool(accounting: str) -> Pool:
    return Pool(SandboxSettings(accounting=accounting, limits=LIMITS, max_concurrent_runs=2))  # type: ignore[arg-type]


def report(result: Result) -> Any:
    """The JSON that a program has printed."""
    assert result.status == "ok", (result.status, result.exit_code, result.stderr_text)
    return json.loads(result.stdout)


def marker() -> str:
    """A word by which processes can be found."""
    return f"attack{uuid.uuid4().hex[:8]}"  # 14 characters: the name of a process has at most 15


def marked(source: str, word: str) -> str:
    """A program whose processes can be found by `word`, also after it has forked."""
    return f"{PRELUDE}\nMARKER = {word!r}\nlibc.prctl(15, MARKER.encode(), 0, 0, 0)\n{source}"


def processes_with(word: str) -> list[int]:
    """The processes of this computer whose name or command line has `word`, except this one, and zombies."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state = (folder / "stat").read_bytes().rpartition(b") ")[2][:1]
            names = (folder / "comm").read_bytes() + (folder / "cmdline").read_bytes()
            if word.encode() in names and state != b"Z" and int(folder.name) != os.getpid():
                found.append(int(folder.name))
    return found


def wait_until_gone(word: str, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and processes_with(word):
        time.sleep(0.02)
    assert processes_with(word) == []


def report_of(pool: Pool, source: str) -> Any:
    """The report of `source`, run after the definitions of `PRELUDE`."""
    return report(pool.run_python(PRELUDE + source))
