"""Runs of `purerl train` that wait for the test before they score the completions of a step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.security.siege import run_environment
from tests.security.surface import descendants, environment

__all__ = ["STEPS", "rank_processes", "release", "started", "train_command"]

STEPS = 6
"""Of a run."""

_RECIPE = "tests.cli.test_stop:waiting_run"


def train_command(folder: Path, *settings: str) -> list[str]:
    """`purerl train`, whose reward functions wait for files in the folder `gate`."""
    (folder / "gate").mkdir()
    arguments = [f"--set={setting}" for setting in settings]
    return ["-m", "purerl_cli", "train", _RECIPE, "--directory", str(folder / "run"), *arguments]


@contextmanager
def started(folder: Path, command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """The process of a run. It is killed with its descendants if the block fails."""
    variables = run_environment(folder, PURERL_TEST_GATE=str(folder / "gate"))
    with (folder / "output").open("w") as output:
        process = subprocess.Popen([sys.executable, *command], env=variables, stdout=output, stderr=output, text=True)
    try:
        yield process
    finally:
        for pid in descendants(process.pid):
            if process.poll() is None or pid != process.pid:
                os.kill(pid, signal.SIGKILL)
        process.wait()


def rank_processes(pid: int) -> dict[int, int]:
    """The ranks among the descendants of a process."""
    found = {environment(child).get(b"RANK", b""): child for child in reversed(descendants(pid))}
    return {int(rank): child for rank, child in found.items() if rank}


def release(folder: Path, steps: range) -> None:
    """Let the run score the completions of `steps`."""
    for step in steps:
        (folder / "gate" / f"release-{step}").touch()
