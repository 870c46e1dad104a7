"""The software and the computer of this process: the commit of purerl, versions of packages, processor and device."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

__all__ = ["commit", "machine", "versions"]

_CLONE = Path(__file__).resolve().parents[2]
_PACKAGES = (
    "purerl", "torch", "transformers", "tensordict", "tokenizers", "accelerate", "peft", "triton", "vllm", "sglang",
    "megatron-core",
)  # fmt: skip
_SECONDS = 10
"""Longer than git takes in a large clone on a slow disk."""


@cache
def commit(clone: Path = _CLONE) -> str | None:
    """The commit of purerl, with ``-dirty`` after it if a file under version control has been changed.

    In a `clone` git is asked. Of an installation from git it is the commit that pip has recorded. None if neither
    knows it, as after ``pip install .``, which copies files only.
    """
    if (clone / ".git").exists():
        return _ask_git(clone)
    try:
        source = json.loads(distribution("purerl").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return None
    return source.get("vcs_info", {}).get("commit_id")


def _ask_git(clone: Path) -> str | None:
    git = shutil.which("git")
    if git is None:
        return None
    command = [git, "-C", str(clone), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # another process of git may work in the clone
    try:
        result = subprocess.run(  # noqa: S603 -- a fixed command
            command, capture_output=True, text=True, timeout=_SECONDS, env=environment, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None


@cache
def versions() -> dict[str, str]:
    """The versions of Python and of the packages that results depend on, as far as they are installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """The system, the processor, the number of cores that the process may use, and the accelerator if there is one."""
    from purerl.system.devices.accelerator import current_accelerator, device_name

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = {"system": f"{platform.system()} {platform.machine()}", "processor": _processor(), "cores": cores}
    device = current_accelerator()
    return found if device is None else {**found, "device": device_name(device)}


def _processor() -> str:
    """The name of the processor in /proc/cpuinfo, or else that of Python."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")
