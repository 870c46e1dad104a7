"""A run with a local Ray, attacked by another user and from another network: it ends as if nobody had been there."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed; nox -s ray has an environment with it")

from tests.cli.test_stop import waiting_run
from tests.loop.runs import records, without_times
from tests.placement.worlds import run_world
from tests.ray.attacks import call_services
from tests.security.conftest import folder, intruders
from tests.security.intruders import Intruders
from tests.security.runs import STEPS, release, started, train_command
from tests.security.siege import Siege, wait_until

__all__ = ["folder", "intruders"]

_DEFAULT_PORTS = (6379, 8265, 10001, 44217, 44227, 52365)


@pytest.fixture
def taken_ports() -> Iterator[None]:
    """The ports that Ray uses by default belong to somebody else."""
    with ExitStack() as stack:
        for port in _DEFAULT_PORTS:
            with suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
        yield


@pytest.mark.usefixtures("taken_ports")
def test_a_local_ray(intruders: Intruders, folder: Path, tmp_path: Path) -> None:
    command = train_command(folder, "placement.kind=ray", "placement.trainers.count=2")
    with started(folder, command) as process:
        siege = Siege(process.pid, folder, intruders, more=(call_services,))
        wait_until(lambda: siege.look().listeners or process.poll() is not None)
        siege.attack(as_rank=False)  # while Ray starts
        wait_until(lambda: (folder / "gate/waiting-1").exists() or process.poll() is not None)
        siege.attack()
        release(folder, range(1, STEPS + 1))
        siege.attack_until_end(process)
    siege.check(process)
    assert {item for item in siege.listeners if not item.is_local} == set(), siege.describe()
    assert siege.reached("another network") == set()
    assert len(siege.reached("another user")) > 8, siege.describe()
    assert [rank.status for rank in run_world(waiting_run(), tmp_path / "run")] == [0, 0]
    assert without_times(records(folder / "run")) == without_times(records(tmp_path / "run"))
