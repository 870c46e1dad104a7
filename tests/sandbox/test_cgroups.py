"""Control groups of both versions: which are found, what is written. Version 2 only in files that look like it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Literal

import pytest

from purerl.sandbox import Limits, Pool, SandboxSettings
from purerl.sandbox.supervisor.cgroups import Cgroup, find_parents, remove_stale
from purerl.sandbox.supervisor.spawners import cgroup_parents


def _mount(target: Path, kind: str, options: str, root: str = "/") -> str:
    return f"29 23 0:26 {root} {target} rw,nosuid - {kind} {kind} {options}\n"


def _version_1(folder: Path, *, root: str = "/") -> tuple[str, str]:
    for name in ("memory", "pids"):
        (folder / name / "docker/a").mkdir(parents=True)
    mounts = [_mount(folder / name, "cgroup", f"rw,{name}", root) for name in ("memory", "pids")]
    return "9:memory:/docker/a\n8:pids:/\n1:name=systemd:/\n0::/\n", "".join(mounts)


def test_version_1_uses_the_groups_of_this_process(tmp_path: Path) -> None:
    assert find_parents(*_version_1(tmp_path)) == {"memory": tmp_path / "memory/docker/a", "pids": tmp_path / "pids"}


def test_version_1_of_a_container_that_sees_only_its_own_groups(tmp_path: Path) -> None:
    """The mount shows the group /docker/a, in which the group of this process is the root."""
    _version_1(tmp_path)
    mounts = _mount(tmp_path / "memory", "cgroup", "rw,memory", "/docker") + _mount(
        tmp_path / "pids", "cgroup", "rw,pids"
    )
    parents = find_parents("9:memory:/docker/docker/a\n8:pids:/\n", mounts)
    assert parents == {"memory": tmp_path / "memory/docker/a", "pids": tmp_path / "pids"}
    assert find_parents("9:memory:/elsewhere\n8:pids:/\n", mounts) is None


def _version_2(folder: Path) -> tuple[str, str]:
    own = folder / "user.slice/app.slice/scope"
    own.mkdir(parents=True)
    controllers = {folder: "cpu memory pids", own.parents[1]: "memory", own.parent: "cpu memory pids", own: ""}
    for path, text in controllers.items():
        (path / "cgroup.subtree_control").write_text(text)
        (path / "cgroup.procs").write_text("")
    return "0::/user.slice/app.slice/scope\n", _mount(folder, "cgroup2", "rw,nsdelegate")


def test_version_2_uses_the_nearest_group_that_hands_on_its_controllers(tmp_path: Path) -> None:
    files = _version_2(tmp_path)
    assert find_parents(*files) == {"": tmp_path / "user.slice/app.slice"}
    (tmp_path / "user.slice/app.slice/cgroup.subtree_control").write_text("memory")
    assert find_parents(*files) == {"": tmp_path}
    (tmp_path / "cgroup.subtree_control").write_text("memory")
    assert find_parents(*files) is None


def test_without_cgroups_there_are_no_parents(tmp_path: Path) -> None:
    assert find_parents("", "") is None
    assert find_parents("0::/\n", _mount(tmp_path, "cgroup2", "rw")) is None, "it has no controllers"


class _Version2(Cgroup):
    """The kernel creates the files of a group together with its directory; here they are ordinary files."""

    def _path(self, name: str) -> Path:
        path = super()._path(name)
        if not path.exists():
            path.write_text(
                {"memory.events": "low 0\noom 0\noom_kill 0\n", "pids.events": "max 0\n"}.get(name, "4096\n")
            )
        return path


def test_version_2_limits_memory_without_swap_and_processes(tmp_path: Path) -> None:
    find_parents(*_version_2(tmp_path))
    cgroup = _Version2({"": tmp_path / "user.slice"}, memory=2**20, processes=7)
    [folder] = [path for path in (tmp_path / "user.slice").iterdir() if path.name.startswith("purerl-sandbox-")]
    cgroup.add(1234)
    written = {
        name: (folder / name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max", "cgroup.procs")
    }
    assert written == {"memory.max": "1048576", "memory.swap.max": "0", "pids.max": "7", "cgroup.procs": "1234"}
    assert (cgroup.version, cgroup.memory()) == (2, 4096)
    assert not cgroup.has_exceeded_memory()
    assert not cgroup.has_exceeded_processes()
    (folder / "memory.events").write_text("low 0\noom 2\noom_kill 1\n")
    (folder / "pids.events").write_text("max 12\n")
    assert cgroup.has_exceeded_memory()
    assert cgroup.has_exceeded_processes()


@pytest.mark.skipif(cgroup_parents() is None, reason="no control groups can be created here")
def test_groups_are_removed_also_if_a_supervisor_was_killed() -> None:
    parents = cgroup_parents() or {}
    cgroup = Cgroup(parents, memory=2**24, processes=5)
    paths = [path for parent in parents.values() for path in parent.glob(f"purerl-sandbox-{os.getpid()}-*")]
    assert len(paths) == len(parents)
    cgroup.close()
    assert not any(path.exists() for path in paths)
    stale = [parent / "purerl-sandbox-99999999-0" for parent in parents.values()]
    for path in stale:
        path.mkdir()
    try:
        remove_stale(parents)
        assert all(path.exists() for path in stale), "they are too new: their supervisor may be about to fill them"
        remove_stale(parents, seconds=-1.0)
        assert not any(path.exists() for path in stale)
    finally:
        for path in stale:
            if path.exists():
                path.rmdir()


_NO_VERSION_1 = pytest.mark.skipif("memory" not in (cgroup_parents() or {}), reason="no control groups of version 1")
_FILL = "input(); kept = bytearray(2**25); print('filled', flush=True); input()"


@_NO_VERSION_1
def test_group_of_version_1_counts_again_for_the_next_run() -> None:
    cgroup = Cgroup(cgroup_parents() or {}, memory=2**28, processes=3)
    try:
        with Popen([sys.executable, "-c", _FILL], stdin=PIPE, stdout=PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            cgroup.add(process.pid)
            print(file=process.stdin, flush=True)
            assert process.stdout.readline() == "filled\n"
            assert not cgroup.renew(memory=2**24, processes=3), "a process with 32 MiB is left"
            print(file=process.stdin, flush=True)
        assert cgroup.memory() >= 2**25
        assert cgroup.renew(memory=2**24, processes=3)
        assert cgroup.memory() < 2**22
    finally:
        cgroup.close()


def test_group_of_version_2_is_not_used_again(tmp_path: Path) -> None:
    find_parents(*_version_2(tmp_path))
    cgroup = _Version2({"": tmp_path / "user.slice"}, memory=2**20, processes=7)
    assert not cgroup.renew(memory=2**20, processes=7)


_RUNS = {  # status: a program that ends with it
    "memory": "kept = []\nwhile True: kept.append(b'x' * 2**20)",
    "processes": "import os, signal\nwhile True: os.fork() or signal.pause()",
    "ok": "kept = b'x' * (30 * 2**20); open('file', 'wb').write(kept)",
}


@pytest.mark.parametrize("accounting", ["auto", "sampling"])
def test_runs_of_a_pool_count_only_themselves(accounting: Literal["auto", "sampling"]) -> None:
    limits = Limits(timeout=20, max_memory=96, max_processes=20)
    with Pool(SandboxSettings(accounting=accounting, max_concurrent_runs=1, limits=limits)) as pool:
        for status in ("ok", "memory", "ok", "processes", "ok", "ok", "memory", "processes"):
            assert pool.run_python(_RUNS[status]).status == status
            small = pool.run_python("print(1)")
            assert (small.status, small.memory < 2**24) == ("ok", True)
