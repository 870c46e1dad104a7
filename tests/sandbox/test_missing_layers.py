"""A missing layer is an error that names it and its remedy; nothing ever runs without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from purerl.errors import SandboxError
from purerl.sandbox import SandboxSettings, run
from purerl.sandbox.failures import LAYERS, REMEDIES
from purerl.sandbox.supervisor.spawners import cgroup_parents

from .hosts import run_where

_RUN = """
from purerl.errors import SandboxError
from purerl.sandbox import SandboxSettings, run
try:
    print(run(["/bin/echo", "ran"], settings=SandboxSettings(layers={layers!r}, accounting={accounting!r})).stdout_text)
except SandboxError as error:
    print(error.layer, error, sep="\\n")
"""


def _run_where(missing: str, *, layers: str = "all") -> list[str]:
    return run_where(missing, _RUN.format(layers=layers, accounting="auto")).splitlines()


@pytest.mark.parametrize(
    ("missing", "layer"),
    [
        ("user namespaces", "user namespace"),
        ("network namespaces", "network namespace"),
        ("mounts", "mount namespace"),
        ("landlock", "landlock"),
        ("seccomp", "seccomp"),
    ],
)
def test_missing_layer_is_an_error_with_a_remedy(missing: str, layer: str) -> None:
    first, what, got, do = _run_where(missing)
    assert (first, what) == (layer, f"the sandbox cannot be built: {layer}")
    assert got.startswith("  got:  [Errno ")
    assert do == f"  do:   {REMEDIES[layer]}"
    assert _run_where(missing, layers="none") == ["ran", ""], "only by its name"


def test_without_landlock_the_other_layers_hold() -> None:
    assert _run_where("landlock", layers="without_landlock") == ["ran", ""]
    assert _run_where("seccomp", layers="without_landlock")[0] == "seccomp"


def test_the_python_tool_says_what_to_do() -> None:
    code = """
from purerl.envs.python_tool import Interpreter, python
from purerl.errors import SandboxError
for tool in (python, Interpreter().python):
    try:
        tool("1")
    except SandboxError as error:
        print(error)
"""
    output = run_where("user namespaces", code)
    assert output.count(f"do:   {REMEDIES['user namespace']}") == 2


def test_other_systems_have_the_remote_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SandboxError, match=r"(?s)no sandbox on this system.*darwin.*remote"):
        run(["/bin/true"])


def test_every_layer_has_a_remedy() -> None:
    assert set(LAYERS) <= set(REMEDIES)


@pytest.mark.skipif(cgroup_parents() is not None, reason="cgroups can be created here")
def test_required_cgroups_that_cannot_be_created_are_an_error() -> None:
    with pytest.raises(SandboxError, match=r"(?s)cgroups.*systemd-run"):
        run(["/bin/true"], settings=SandboxSettings(accounting="cgroups"))


_MASK = """
import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None)
assert libc.unshare(0x20000) == 0
assert libc.mount(None, b"/", None, 16384 | (1 << 18), None) == 0
assert libc.mount(b"tmpfs", b"/proc/bus", b"tmpfs", 1, None) == 0
"""


@pytest.mark.skipif(os.geteuid() != 0 or cgroup_parents() is None, reason="needs root, and cgroups")
def test_where_proc_is_masked_cgroups_measure_and_sampling_is_an_error() -> None:
    """As in a container: its /proc has parts that are mounted over, so the kernel allows no other one."""
    outputs = {}
    for accounting in ("cgroups", "sampling"):
        code = _MASK + _RUN.format(layers="all", accounting=accounting)
        command = [sys.executable, "-c", code]
        process = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
        outputs[accounting] = process.stdout.splitlines()
    assert outputs["cgroups"] == ["ran", ""]
    assert outputs["sampling"][0] == "accounting"
    assert outputs["sampling"][-1] == f"  do:   {REMEDIES['accounting']}"
