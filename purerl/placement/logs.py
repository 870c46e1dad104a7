"""The logs of ranks, in the directory ``ranks`` of a run.

Rank 0 uses the console. What any other rank prints goes to its log, also what C++ prints. Every log gets the stacks of
its rank when a collective call misses its deadline.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import indent
from typing import IO

from attrs import define, field

from purerl.system.terminal import escape

__all__ = ["RankLog", "last_lines", "log_path", "restore_output"]

_FOLDER, _FAILED = "ranks", "failed.txt"
_NUM_LINES = 15
_STDERR = 2
_FIRST_LINE = "begins, process"
_MAX_TAIL = 2**14  # bytes
_replaced: list[tuple[int, int]] = []  # copies of stdout and stderr, while they are redirected


def log_path(directory: Path, rank: int | str) -> Path:
    """The log of `rank`, or of the actor with this name, of the run in `directory`."""
    return directory / _FOLDER / f"{rank}.log"


def last_lines(path: Path) -> str:
    """The last lines that the newest process has written into the log at `path`, indented; empty if there are none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_TAIL))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    lines = lines[max((k for k, line in enumerate(lines) if _FIRST_LINE in line), default=0) :][-_NUM_LINES:]
    return indent("\n".join(lines), "  | ")


@define
class RankLog:
    """The log of this rank. It is created with its first line.

    directory  of the run
    rank       its number, or the name of an actor
    console    what stderr was before it was redirected
    """

    directory: Path
    rank: int | str
    console: int = field(default=_STDERR)

    def write(self, text: str) -> None:
        """Append `text`, with the time."""
        with self._opened() as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} rank {self.rank}: {text}\n")

    def write_stacks(self, reason: str) -> None:
        """Append the stacks of all threads of this process."""
        with self._opened() as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} rank {self.rank}: {reason}; the stacks:\n")
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)

    def report(self, text: str) -> bool:
        """Write into the run directory why the run has failed; return whether this is the first report."""
        path = log_path(self.directory, self.rank).with_name(_FAILED)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        except FileExistsError:
            return False
        return True

    @property
    def is_redirected(self) -> bool:
        """Whether what this rank prints goes to its log."""
        return self.console != _STDERR

    def print(self, text: str) -> None:
        """Print `text` to the console, also if this rank does not use it otherwise."""
        os.write(self.console, f"{escape(text)}\n".encode())

    @contextmanager
    def redirected(self) -> Iterator[None]:
        """Send what a rank other than 0 prints in the block to its log; after an error also what it prints later.

        For rank 0 reports an error of any rank. `restore_output` ends it when the process begins another run.
        """
        if self.rank == 0:
            log_path(self.directory, self.rank).with_name(_FAILED).unlink(missing_ok=True)
            yield
            return
        _replaced.append(_redirected(self))
        self.console = _replaced[-1][1]
        yield
        self.console = _STDERR
        restore_output()

    def redirect(self) -> None:
        """From now on, what this process prints goes to its log."""
        for descriptor in _redirected(self):
            os.close(descriptor)

    def _opened(self) -> IO[str]:
        path = log_path(self.directory, self.rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a", encoding="utf-8")


def _redirected(log: RankLog) -> tuple[int, int]:
    """Let stdout and stderr write into `log`; return copies of their file descriptors."""
    log.write(f"{_FIRST_LINE} {os.getpid()}")
    before = (os.dup(1), os.dup(2))
    target = os.open(log_path(log.directory, log.rank), os.O_WRONLY | os.O_APPEND)
    _flush()
    for descriptor in (1, 2):
        os.dup2(target, descriptor)
    os.close(target)
    return before


def restore_output() -> None:
    """Let this process print to its console again, if it does not since a run has redirected it."""
    while _replaced:
        _flush()
        for descriptor, copy in zip((1, 2), _replaced.pop(), strict=True):
            os.dup2(copy, descriptor)
            os.close(copy)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
