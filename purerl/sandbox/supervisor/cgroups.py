"""Control groups, which limit memory and processes of the whole tree of a run, and measure them.

Both versions of cgroups are used where this process may create groups: in version 1 below its own groups, in version 2
below the nearest one that hands memory and pids on to its children. Elsewhere `purerl.sandbox.supervisor.sampling`
takes their place.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

__all__ = ["Cgroup", "find_parents", "remove_stale"]

_PREFIX = "purerl-sandbox-"
_STALE_SECONDS, _REMOVAL_SECONDS = 60.0, 2.0
_LEFT = 2**22  # bytes that may be in a group when a run starts; a spawner needs up to 3 MiB


def find_parents(memberships: str, mounts: str) -> Mapping[str, Path] | None:
    """The directories below which this process may create groups, by controller; None if there are none.

    memberships, mounts  the contents of /proc/self/cgroup and /proc/self/mountinfo
    """
    groups = dict(_groups(memberships, mounts))
    for parents in (_version_1(groups), _version_2(groups)):
        if parents is not None and all(os.access(path, os.W_OK) for path in parents.values()):
            return parents
    return None


def _groups(memberships: str, mounts: str) -> Iterator[tuple[str, tuple[Path, Path]]]:
    """For each controller, "" in version 2: (the directory of the group of this process, where it is mounted)."""
    own = [line.split(":", 2) for line in memberships.splitlines()]
    paths = {controller: path for _, names, path in own for controller in names.split(",")}
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        (root, target), (kind, _, options) = before.split(" ")[3:5], after.split(" ", 2)
        names = [""] if kind == "cgroup2" else options.split(",") if kind == "cgroup" else []
        for name in names:
            if name in paths and (path := _relative(paths[name], root)) is not None:
                yield name, (Path(target, path), Path(target))


def _relative(path: str, root: str) -> str | None:
    """`path` below the root of a mount; None if it is not below it.

    >>> _relative("/a/b", "/a"), _relative("/a/b", "/"), _relative("/ab", "/a")
    ('b', 'a/b', None)
    """
    if root == "/":
        return path.lstrip("/")
    return path[len(root) :].lstrip("/") if path == root or path.startswith(f"{root}/") else None


def _version_1(groups: Mapping[str, tuple[Path, Path]]) -> Mapping[str, Path] | None:
    return {name: groups[name][0] for name in ("memory", "pids")} if {"memory", "pids"} <= groups.keys() else None


def _version_2(groups: Mapping[str, tuple[Path, Path]]) -> Mapping[str, Path] | None:
    """The nearest group, from the own one upwards, that hands both controllers on and in which groups can be made."""
    if "" not in groups:
        return None
    own, top = groups[""]
    for path in (own, *own.parents):
        with suppress(OSError):
            controllers = (path / "cgroup.subtree_control").read_text().split()
            if {"memory", "pids"} <= set(controllers) and os.access(path / "cgroup.procs", os.W_OK):
                return {"": path}
        if path == top:
            return None
    return None


class Cgroup:
    """The group of one run, or of one run after the other. `memory` are bytes, `processes` the number of processes.

    A thread counts as a process. What was in the group when a run started is not counted.

    version  of cgroups: 1 or 2

    Raises: OSError if it cannot be created.
    """

    def __init__(self, parents: Mapping[str, Path], *, memory: int, processes: int):
        name = f"{_PREFIX}{os.getpid()}-{os.urandom(4).hex()}"  # a process id alone may have been used before
        self._paths = {controller: path / name for controller, path in parents.items()}
        self.version = 2 if "" in parents else 1
        self._names = _VERSION_2 if self.version == 2 else _VERSION_1
        self._limit, self._before = float("inf"), _Counts(0, 0, 0)
        try:
            for path in self._paths.values():
                path.mkdir()
            self._set_limits(memory, processes)
        except OSError:
            self.close()
            raise

    def _set_limits(self, memory: int, processes: int) -> None:
        names, swap = self._names, self._path(self._names["swap"])
        files = [(self._path(names["memory"]), memory)]
        if swap.exists():
            files.append((swap, names["no_swap"] or memory))
        # In version 1, the limit of memory is never larger than that of memory and swap together.
        for path, value in files if memory <= self._limit else reversed(files):
            path.write_text(str(value))
        self._path("pids.max").write_text(str(processes))
        self._limit = memory

    def _path(self, name: str) -> Path:
        return self._paths["" if self.version == 2 else name.partition(".")[0]] / name

    def add(self, pid: int) -> None:
        """Move the process `pid` into the group, which takes the kernel up to 20 ms. Raises: OSError."""
        for path in self._paths.values():
            (path / "cgroup.procs").write_text(str(pid))

    def renew(self, *, memory: int, processes: int) -> bool:
        """Let the next run start in this group, in which nothing but the spawner of its processes is left.

        Returns whether this is possible. It is not in version 2, where the largest memory cannot be forgotten, nor if
        there is more memory left than a spawner needs, such as files of earlier runs that are being removed.
        """
        with suppress(OSError):
            left = self._number(self._names["usage"])
            if self.version == 2 or left > _LEFT:
                return False
            self._set_limits(left + memory, processes)
            self._path(self._names["peak"]).write_text("0")
            self._before = _Counts(
                left, self._count(self._names["events"], "oom_kill"), self._count("pids.events", "max")
            )
            return True
        return False

    def memory(self) -> int:
        """The largest memory that the run has used, in bytes; what it uses now, if the kernel does not keep this."""
        for name in (self._names["peak"], self._names["usage"]):
            with suppress(OSError):
                return max(0, self._number(name) - self._before.memory)
        return 0

    def has_exceeded_memory(self) -> bool:
        """Whether the kernel has killed a process because the run needed more than its memory."""
        return self._count(self._names["events"], "oom_kill") > self._before.kills

    def has_exceeded_processes(self) -> bool:
        """Whether the kernel has refused to start a process or thread."""
        return self._count("pids.events", "max") > self._before.refusals

    def _number(self, name: str) -> int:
        return int(self._path(name).read_text())

    def _count(self, name: str, event: str) -> int:
        found = re.search(rf"^{event} (\d+)", self._path(name).read_text(), re.MULTILINE)
        return int(found[1]) if found else 0

    def close(self) -> None:
        """Remove the group, whose processes have ended. What cannot be removed is left to `remove_stale`."""
        end = time.monotonic() + _REMOVAL_SECONDS
        for path in self._paths.values():
            while path.exists() and time.monotonic() < end:
                with suppress(OSError):
                    path.rmdir()
                    break
                time.sleep(0.002)


class _Counts(NamedTuple):
    """The counters of a group before the run: bytes, killed processes, and refused processes."""

    memory: int
    kills: int
    refusals: int


_VERSION_1 = {
    "memory": "memory.limit_in_bytes", "swap": "memory.memsw.limit_in_bytes", "no_swap": None,
    "peak": "memory.max_usage_in_bytes", "usage": "memory.usage_in_bytes", "events": "memory.oom_control",
}  # fmt: skip
_VERSION_2 = {
    "memory": "memory.max", "swap": "memory.swap.max", "no_swap": "0",
    "peak": "memory.peak", "usage": "memory.current", "events": "memory.events",
}  # fmt: skip


def remove_stale(parents: Mapping[str, Path], *, seconds: float = _STALE_SECONDS) -> None:
    """Remove groups older than `seconds` whose supervisor was killed before it could remove them."""
    for parent in parents.values():
        for path in parent.glob(f"{_PREFIX}*"):
            pid = path.name.removeprefix(_PREFIX).partition("-")[0]
            with suppress(OSError):
                if not Path("/proc", pid).exists() and time.time() - path.stat().st_mtime > seconds:
                    path.rmdir()
