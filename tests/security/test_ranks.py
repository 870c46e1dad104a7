"""Two ranks on this host, attacked while they start and as long as they run: nothing is read, and nothing changes."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_stop import waiting_run
from tests.loop.runs import records, without_times
from tests.placement.worlds import run_world
from tests.security.intruders import Intruders
from tests.security.runs import STEPS, rank_processes, release, started, train_command
from tests.security.siege import Siege, public_folder, wait_until
from tests.security.surface import tcp_sockets

pytestmark = [pytest.mark.parallel, pytest.mark.started_workers]

_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture(scope="module")
def expected() -> list[dict[str, Any]]:
    """The metrics of a run that nobody attacks."""
    with public_folder() as folder:
        assert [rank.status for rank in run_world(waiting_run(), folder / "run")] == [0, 0]
        return without_times(records(folder / "run"))


def attack(siege: Siege, process: subprocess.Popen[str], *, tampers_early: bool) -> None:
    """Attack `process` in three states in which one rank waits for the other, and until it ends."""
    wait_until(lambda: len(rank_processes(process.pid)) == 2 or process.poll() is not None)
    first, second = (rank_processes(process.pid)[rank] for rank in (0, 1))
    os.kill(second, signal.SIGSTOP)  # now rank 0 opens what it has to open, and waits
    wait_until(lambda: tcp_sockets(first) or process.poll() is not None)
    siege.attack(as_rank=False, tampers=tampers_early)
    os.kill(second, signal.SIGCONT)
    wait_until(lambda: (siege.folder / "gate/waiting-1").exists() or process.poll() is not None)
    siege.attack()
    if process.poll() is None:
        os.kill(second, signal.SIGSTOP)  # now rank 0 sends its message, and waits for that of rank 1
        release(siege.folder, range(1, 2))
        siege.attack()
        os.kill(second, signal.SIGCONT)
    release(siege.folder, range(1, STEPS + 1))
    siege.attack_until_end(process)


def test_ranks_that_purerl_starts(intruders: Intruders, folder: Path, expected: list[dict[str, Any]]) -> None:
    with started(folder, train_command(folder, "placement.ranks=2")) as process:
        siege = Siege(process.pid, folder, intruders)
        attack(siege, process, tampers_early=True)
    siege.check(process)
    assert {item for item in siege.listeners if not item.is_local} == set(), siege.describe()
    assert siege.reached("another network") == set()
    assert siege.values() == {}
    assert without_times(records(folder / "run")) == expected


def test_ranks_that_torchrun_starts(intruders: Intruders, folder: Path, expected: list[dict[str, Any]]) -> None:
    """The store of torchrun listens everywhere. What is in it is of no use, and is not used once the ranks have met."""
    with started(folder, [*_TORCHRUN, *train_command(folder)]) as process:
        siege = Siege(process.pid, folder, intruders)
        attack(siege, process, tampers_early=False)
    siege.check(process)
    remote = {item for item in siege.listeners if not item.is_local}
    assert {item.pid for item in remote} == {process.pid}, siege.describe()
    assert siege.reached("another network") <= remote
    own = {key for key in siege.values() if "purerl/" in key}
    assert own <= {f"purerl/0/{key}" for key in ("start/0", "start/1", "folder/0", "folder/1", "folder/purerl-ranks-")}
    assert without_times(records(folder / "run")) == expected


def test_messages_of_a_stranger_in_the_store_of_torchrun(intruders: Intruders, folder: Path) -> None:
    """They are refused before they are read, and the run ends with an error."""
    with started(folder, [*_TORCHRUN, *train_command(folder)]) as process:
        siege = Siege(process.pid, folder, intruders)
        wait_until(lambda: len(rank_processes(process.pid)) == 2 or process.poll() is not None)
        first, second = (rank_processes(process.pid)[rank] for rank in (0, 1))
        os.kill(second, signal.SIGSTOP)
        wait_until(lambda: tcp_sockets(first) or process.poll() is not None)
        while not any(key.startswith("purerl/") for key in siege.values()):
            siege.attack(as_rank=False)
        os.kill(second, signal.SIGCONT)
        siege.attack_until_end(process)
    assert siege.findings() == set(), siege.describe()
    assert "error: a message that no process of this run has sent" in (folder / "output").read_text()
    assert process.returncode == 1
