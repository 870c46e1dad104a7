"""`purerl train` with several ranks, and scripts under torchrun: processes, signals, exit statuses."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from purerl.store.checkpoint import saved_steps
from tests.placement.forked_launcher import start_forked
from tests.placement.processes import DEADLINE, children, descendants, is_alive, wait_until
from tests.ranks import torchrun

pytestmark = pytest.mark.parallel

RECIPE = "tests.cli.test_stop:waiting_run"


class Launched:
    """`purerl train` on two ranks, in a process that `start` starts. Their reward functions wait for `release`."""

    def __init__(self, directory: Path, number: int, start: Callable[..., subprocess.Popen[str]]) -> None:
        self.directory, self.gate = directory, directory.with_name(f"gate-{number}")
        self.gate.mkdir()
        command = [sys.executable, "-m", "purerl_cli", "train", RECIPE, "--directory", str(directory)]
        command += ["--set", "placement.ranks=2", "--set", "checkpoint.every=1"]
        self.process = start(
            command,
            env=os.environ | {"PURERL_TEST_GATE": str(self.gate)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until(lambda: (self.gate / "waiting-1").exists() or self.process.poll() is not None)
        assert self.process.poll() is None, self.process.communicate()
        self.descendants = descendants(self.process.pid)

    def release(self) -> None:
        for step in range(1, 7):
            (self.gate / f"release-{step}").touch()

    @property
    def children(self) -> list[int]:
        """The process ids of the ranks, and of the server that has forked them."""
        return children(self.process.pid)

    def end(self) -> tuple[int, str]:
        """The exit status and the error output; no process may be left."""
        try:
            _, errors = self.process.communicate(timeout=DEADLINE)
        finally:
            self.process.kill()
        wait_until(lambda: not any(map(is_alive, self.descendants)))
        return self.process.returncode, errors


def test_signals_to_the_launcher_and_to_a_rank(tmp_path: Path) -> None:
    """The processes of the first run are started, and those of the others are forked."""
    directory = tmp_path / "run"
    run = Launched(directory, 1, subprocess.Popen)
    assert len(run.children) == 2
    run.process.send_signal(signal.SIGTERM)
    assert run.process.stderr is not None
    lines = (line for line in iter(run.process.stderr.readline, "") if not line.startswith("purerl: "))
    assert next(lines).startswith("SIGTERM: the run stops after this step")  # from rank 0
    run.release()
    status, errors = run.end()
    assert status == 75, errors
    assert errors.count(f"'{directory}': stopped after step 1\n") == 1
    assert saved_steps(directory / "checkpoints") == {1}

    run = Launched(directory, 2, start_forked)
    last = (directory / "ranks/1.log").read_text().splitlines()[-1]
    rank = int(re.findall(r"process (\d+)", last)[0])
    assert rank in run.children
    os.kill(rank, signal.SIGKILL)
    status, errors = run.end()
    assert status == 1
    assert "error: rank 1 has ended without an error message (was it killed?)\n" in errors
    assert errors.endswith("rank 1 was ended by SIGKILL\n")

    run = Launched(directory, 3, start_forked)
    run.process.kill()
    run.end()
    assert re.search("the launcher .*has ended", (directory / "ranks/failed.txt").read_text())
    assert saved_steps(directory / "checkpoints") == {1}


def test_script_of_a_user_runs_under_torchrun(tmp_path: Path) -> None:
    script = [str(Path(__file__).with_name("user_script.py")), str(tmp_path / "run")]
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    done = torchrun(*script, timeout=DEADLINE, environment={"PYTHONPATH": paths})
    lines = done.stdout.splitlines()
    assert lines.count("  got:  3, but torchrun has started 2 processes on this host") == 2
    assert lines.count("2 steps, group initialized: False") == 2
    assert lines.count("2 steps, group of the script: True") == 2
    assert sum(line.startswith("addition: step 2") for line in lines) == 2
