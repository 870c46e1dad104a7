"""Measuring the processes of a sandbox by reading /proc: memory, CPU time, and the number of processes.

Where there are cgroups, the kernel counts memory and processes, and this measures only CPU time. Elsewhere the
supervisor measures all of them many times per second, and ends the run when a limit is exceeded. Between two
measurements the memory can grow beyond its limit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

__all__ = ["Sampler", "Usage", "descendants"]

_TICKS = os.sysconf("SC_CLK_TCK")
_ENTRIES = re.compile(rb"^(\w+):\s+(\d+)", re.MULTILINE)


class Usage(NamedTuple):
    """The use of the processes of a sandbox together: bytes, seconds, and the number of processes and threads.

    memory  private memory, with pages that processes share since a fork counted in each of them; and all files
    """

    memory: int
    cpu_seconds: float
    processes: int


class Sampler:
    """Measures the processes in the directory `proc`, except for process 1, which belongs to the sandbox itself.

    proc     descriptor of a mounted /proc
    private  descriptor of a directory of the tmpfs with everything that the sandbox has written; None: no tmpfs
    pids     lists the process ids, if not all processes in `proc` belong to the sandbox
    """

    def __init__(self, proc: int, private: int | None, pids: Callable[[], Iterable[int]] | None = None):
        self._proc, self._private = proc, private
        self._pids = pids or self._all_pids

    def _all_pids(self) -> list[int]:
        with suppress(OSError):  # process 1 has ended
            return [int(name) for name in os.listdir(self._proc) if name.isdigit() and name != "1"]
        return []

    def usage(self, *, with_memory: bool) -> Usage:
        """Measure now. Without `with_memory`, the memory is 0. A process that has just ended uses nothing."""
        ticks = processes = kilobytes = 0
        for pid in self._pids():
            with suppress(OSError):
                fields = self._fields(pid)
                ticks += sum(map(int, fields[11:15]))  # of the process, and of its children that have ended
                processes += int(fields[17])
                if with_memory:
                    kilobytes += self._kilobytes(pid, (b"RssAnon", b"VmSwap", b"VmPTE"), "status")
        if self._private is not None:
            with suppress(OSError):
                ticks += sum(map(int, self._fields(1)[13:15]))  # of orphans, which process 1 has collected
        return Usage(kilobytes * 1024 + self._written() if with_memory else 0, ticks / _TICKS, processes)

    def exact_memory(self) -> int:
        """The memory in bytes, with shared pages counted once. It takes longer: the kernel reads all page tables."""
        kilobytes = 0
        for pid in self._pids():
            with suppress(OSError):
                kilobytes += self._kilobytes(pid, (b"Pss_Anon", b"Swap"), "smaps_rollup")
                kilobytes += self._kilobytes(pid, (b"VmPTE",), "status")
        return kilobytes * 1024 + self._written()

    def _fields(self, pid: int) -> list[bytes]:
        """The fields of a process in `stat`, after its name, which may contain anything."""
        return self._read(pid, "stat").rpartition(b") ")[2].split()

    def _kilobytes(self, pid: int, names: Collection[bytes], file: str) -> int:
        """The sum of some entries of a file; a process that is ending has none."""
        return sum(int(value) for name, value in _ENTRIES.findall(self._read(pid, file)) if name in names)

    def _written(self) -> int:
        """The size of the files in the private tmpfs."""
        if self._private is None:
            return 0
        state = os.fstatvfs(self._private)
        return (state.f_blocks - state.f_bfree) * state.f_frsize

    def _read(self, pid: int, name: str) -> bytes:
        descriptor = os.open(f"{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
        try:
            return os.read(descriptor, 2**16)
        finally:
            os.close(descriptor)


def descendants(ancestor: int) -> list[int]:
    """The ids of the processes that `ancestor` has started, directly or not, in the order of the tree."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            _, parent = path.read_bytes().rpartition(b")")[2].split()[:2]
            children.setdefault(int(parent), []).append(int(path.parent.name))
    found, queue = [], [ancestor]
    while queue:
        new = children.pop(queue.pop(0), [])
        found += new
        queue += new
    return found
