"""The spawners of a supervisor, and the control groups of the runs that it starts.

The spawner of private sandboxes is in the group of their processes, so that they are in it from their start: moving a
process takes the kernel up to 20 ms, in which no process of the computer can be started. So the group of a run serves
the next run too, if the kernel can count from there on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from purerl.sandbox.messages import Task
from purerl.sandbox.supervisor.cgroups import Cgroup, find_parents
from purerl.sandbox.supervisor.spawner import NAMESPACES, Refusal, Spawner

__all__ = ["Spawners", "Start", "cgroup_parents"]


@cache
def cgroup_parents() -> Mapping[str, Path] | None:
    """The folders in which control groups can be created; None: there are none."""
    try:
        return find_parents(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    except OSError:
        return None


class Start(NamedTuple):
    """The start of a run.

    spawn   starts process 1 of its sandbox, given its descriptors, and returns its id
    cgroup  the group in which that process is, if there is one
    """

    spawn: Callable[[Sequence[int]], int]
    cgroup: Cgroup | None


class Spawners:
    """The spawners of a supervisor: `base`, for programs without layers, and a template for each kind of sandbox."""

    def __init__(self, base: Spawner):
        self.base = base
        self._templates: dict[tuple[tuple[str, ...], bool], Spawner] = {}
        self._groups: dict[tuple[str, ...], Cgroup] = {}  # of the templates that are in one

    def prepare(self, task: Task) -> Start:
        """A function that starts process 1 of a sandbox for `task`. Raises: Refusal; OSError."""
        if task.layers == "none":
            cgroup = _new_group(task, others=1)
            return Start(partial(self._spawn_without_layers, cgroup), cgroup)
        paths = tuple(task.read_only)
        cgroup = self._groups.get(paths)
        if task.accounting == "sampling" or cgroup is None or not cgroup.renew(**_limits(task, others=2)):
            cgroup = _new_group(task, others=2)
        key = paths, cgroup is not None  # shared pages of /dev/zero are memory that only a cgroup counts
        try:
            if key not in self._templates:
                self._templates[key] = self.base.open_template(task.read_only, with_zero=cgroup is not None)
            if cgroup is not None:
                self._move(key, cgroup)
        except BaseException:
            if cgroup is not None:
                cgroup.close()
            raise
        return Start(partial(self._spawn, key), cgroup)

    def _move(self, key: tuple[tuple[str, ...], bool], cgroup: Cgroup) -> None:
        """Let the processes of a template start in `cgroup`."""
        earlier = self._groups.get(key[0])
        if earlier is not cgroup:
            cgroup.add(self._templates[key].pid)
            self._groups[key[0]] = cgroup
            if earlier is not None:
                earlier.close()

    def _spawn(self, key: tuple[tuple[str, ...], bool], descriptors: Sequence[int]) -> int:
        try:
            return self._templates[key].spawn(sum(NAMESPACES.values()), descriptors)
        except ConnectionError:
            self._templates.pop(key).end()
            if cgroup := self._groups.pop(key[0], None):
                cgroup.close()
            raise
        except OSError as error:
            raise Refusal(self.base.missing_namespace(), error.errno, str(error)) from error

    def _spawn_without_layers(self, cgroup: Cgroup | None, descriptors: Sequence[int]) -> int:
        pid = self.base.spawn(0, descriptors)
        if cgroup is not None:
            cgroup.add(pid)
        return pid

    def end(self) -> None:
        """End all of them, and remove their groups."""
        for spawner in (self.base, *self._templates.values()):
            spawner.end()
        for cgroup in self._groups.values():
            cgroup.close()


def _limits(task: Task, *, others: int) -> dict[str, int]:
    """Of a control group with the processes of `task` and `others`."""
    return {"memory": task.bounds.memory, "processes": task.bounds.processes + others}


def _new_group(task: Task, *, others: int) -> Cgroup | None:
    """A control group, if there should be one. In "auto", there is none if it cannot be created. Raises: Refusal."""
    if task.accounting == "sampling":
        return None
    parents = cgroup_parents()
    reason = OSError("this process may not create control groups of memory and pids")
    if parents is not None:
        try:
            return Cgroup(parents, **_limits(task, others=others))
        except OSError as error:
            reason = error
    if task.accounting == "cgroups":
        raise Refusal("cgroups", reason.errno, str(reason))
    return None
