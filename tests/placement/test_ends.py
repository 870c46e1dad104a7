"""The end of runs on several ranks when a rank is stopped, and when their launcher is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from purerl.system import stores
from purerl.system.stores import without_frames
from tests.placement.processes import DEADLINE, children, descendants, is_alive, wait_until

pytestmark = pytest.mark.parallel

RECIPE = "tests.cli.test_stop:waiting_run"
HEARTBEAT, MORE = 12.0, 10.0  # seconds; the first is long enough for a rank on a busy machine


class Torchrun:
    """A run on two ranks that torchrun, or `purerl train`, has started. Their reward functions wait."""

    def __init__(self, directory: Path, launcher: list[str], *arguments: str) -> None:
        gate = directory.with_name("gate")
        gate.mkdir()
        command = [sys.executable, *launcher, "train", RECIPE, "--directory", str(directory), *arguments]
        settings = {"checkpoint.every": 1, "placement.heartbeat_timeout": HEARTBEAT}
        command += [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        environment = os.environ | {"PURERL_TEST_GATE": str(gate)}
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: (gate / "waiting-1").exists() or self.process.poll() is not None)
        assert self.process.poll() is None, self.process.communicate()
        self.descendants = descendants(self.process.pid)

    def rank(self, number: int) -> int:
        """The process id of a rank."""
        [found] = [pid for pid in children(self.process.pid) if f"\0RANK={number}\0" in _environment(pid)]
        return found

    def end(self) -> tuple[int, str, float]:
        """The exit status, the error output, and the seconds until the launcher has returned; no process is left."""
        begin = time.monotonic()
        try:
            _, errors = self.process.communicate(timeout=DEADLINE)
        finally:
            self.process.kill()
        seconds = time.monotonic() - begin
        wait_until(lambda: not any(map(is_alive, self.descendants)))
        return self.process.returncode, errors, seconds


def _environment(pid: int) -> str:
    try:
        return f"\0{Path(f'/proc/{pid}/environ').read_text()}"
    except OSError:
        return ""


OWN = ["-m", "purerl_cli"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *OWN]
RANKS_SETTING = ("--set", "placement.ranks=2")


@pytest.mark.parametrize(("launcher", "rank"), [("purerl", 0), ("torchrun", 1)])
def test_a_stopped_rank_ends_the_run_in_time(launcher: str, rank: int, tmp_path: Path) -> None:
    arguments = (OWN, *RANKS_SETTING) if launcher == "purerl" else (TORCHRUN,)
    run = Torchrun(tmp_path / "run", *arguments)
    stopped = run.rank(rank)
    os.kill(stopped, signal.SIGSTOP)
    status, errors, seconds = run.end()
    assert status == 1
    assert f"error: rank {rank} has given no sign of life\n" in errors
    assert f"  got:  its process {stopped} is stopped (by SIGSTOP or a debugger), and is killed; see " in errors
    assert "the same command resumes the run from its last checkpoint" in errors
    assert seconds < HEARTBEAT + MORE


def test_ranks_whose_torchrun_is_killed_print_no_frames_of_c(tmp_path: Path) -> None:
    """They stay in the store of torchrun, as ranks of several hosts do, and it ends with torchrun."""
    script = tmp_path / "script.py"
    script.write_text(
        "from purerl.placement import meeting\n"
        "from purerl_cli.main import main\n"
        "meeting._is_own = lambda folder: False\n"
        "main()\n"
    )
    launcher = [*TORCHRUN[:-2], str(script)]
    run = Torchrun(tmp_path / "run", launcher)
    run.process.kill()
    _, errors, _ = run.end()
    for text in (errors, (tmp_path / "run/ranks/1.log").read_text()):
        assert "the same command resumes the run from its last checkpoint" in text
        assert "frame #" not in text
        assert "Exception raised from" not in text


class _Store:
    """A store of torch whose connection is lost."""

    def __init__(self, error: Exception) -> None:
        self.error, self.levels = error, list[int]()

    def get(self) -> None:
        self.levels.append(stores._log_level().value)
        raise self.error


def test_errors_of_a_lost_store_have_no_frames_and_the_level_of_the_log_is_restored() -> None:
    before = stores._log_level().value
    store = _Store(
        RuntimeError("Connection reset by peer\nException raised from recvBytes at Utils.hpp:685\nframe #0: x")
    )
    with pytest.raises(RuntimeError) as raised, without_frames(), without_frames():
        store.get()
    assert str(raised.value) == "Connection reset by peer"
    assert store.levels == [2]
    assert stores._log_level().value == before
