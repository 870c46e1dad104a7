"""Needs of the tests beside packages. If the machine lacks one, one test says so, and the others are skipped."""

from __future__ import annotations

import os
import signal
import stat
import tempfile
from pathlib import Path

__all__ = ["MACHINE_TESTS", "faults", "reset_signals"]

MACHINE_TESTS = "test_machine.py"

_INHERITED = (signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2)


def faults(null: str = os.devnull) -> list[str]:
    """The faults of the machine: texts for people."""
    found = []
    try:
        mode = os.lstat(null).st_mode
    except OSError as error:
        found.append(f"{null} cannot be used ({error.strerror}): create it by `mknod -m 666 {null} c 1 3`")
    else:
        if not stat.S_ISCHR(mode):
            kind = "a link" if stat.S_ISLNK(mode) else "a file"
            found.append(f"{null} is {kind} and no device: replace it by `rm {null} && mknod -m 666 {null} c 1 3`")
        elif not os.access(null, os.R_OK | os.W_OK):
            found.append(f"{null} cannot be read and written: `chmod 666 {null}`")
    if not os.access(tempfile.gettempdir(), os.W_OK):
        found.append(f"{tempfile.gettempdir()} cannot be written: set TMPDIR")
    if not Path("/proc/self/stat").exists() and os.uname().sysname == "Linux":
        found.append("/proc is not mounted")
    return found


def reset_signals() -> None:
    """Handle signals as a program does that a terminal has started; nohup and schedulers let programs ignore some."""
    for number in _INHERITED:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
