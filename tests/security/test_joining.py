"""A stranger who takes the place of a rank: gloo accepts the first process that connects to a port."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from torch import distributed as dist

from purerl.errors import EngineError
from purerl.placement.meeting import prepare_folder
from purerl.placement.process_group import process_group
from purerl.placement.world import World
from purerl.system.private_files import private_folder
from tests.security.attacks import Joining
from tests.security.intruders import Intruders
from tests.security.siege import DEADLINE, wait_until
from tests.security.surface import Listener, surface_of

pytestmark = [pytest.mark.parallel, pytest.mark.started_workers]

_TRIES = 20  # in about half of them rank 0 connects to rank 1, and not the other way round
_TIMEOUT = 3.0  # seconds
_SUM = "the sum is 3"


def _rank(connection: Connection, folder: Path, rank: int) -> None:
    """Join the other rank, and send the sum of both numbers, or the error; end after an answer."""
    world = World(rank, 2, rank, "", 0, "a test", 2, folder)
    try:
        with process_group(world, bytes, 10 * DEADLINE):  # nothing waits as long as for a collective call
            total = torch.full((10_000,), 1.0 + rank)
            dist.all_reduce(total)
            connection.send(f"the sum is {total.max().item():g}")
            connection.recv()
    except EngineError as error:
        connection.send(str(error))
        connection.recv()
    os._exit(0)


@contextmanager
def _started(folder: Path, rank: int) -> Iterator[tuple[int, Connection]]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_rank, args=(theirs, folder, rank))
    process.start()
    assert process.pid is not None
    try:
        yield process.pid, ours
    finally:
        process.kill()
        process.join()


def _listener(pid: int) -> Listener | None:
    """The port of gloo. A process that was forked has the listening sockets of this one too."""
    inherited = {item.port for item in surface_of([os.getpid()], []).listeners}
    listeners = surface_of([pid], []).listeners
    return next((item for item in listeners if item.kind == "tcp" and item.port not in inherited), None)


def _try(intruders: Intruders) -> list[str]:
    """The outcomes of two ranks, when another user has connected to the first one before the second one starts."""
    with private_folder("purerl-test-") as folder:
        prepare_folder(folder)
        with _started(folder, 0) as (pid, first):
            wait_until(lambda: _listener(pid))
            listener = _listener(pid)
            assert listener is not None
            assert listener.is_local
            intruders.processes[0].start(Joining(listener))
            intruders.processes[0].report()
            with _started(folder, 1) as (_, second):
                assert first.poll(DEADLINE)
                assert second.poll(DEADLINE)
                return [first.recv(), second.recv()]


def test_a_stranger_is_not_taken_for_a_rank(intruders: Intruders, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks refuse to work with a process that does not prove that it has the secret of the run."""
    monkeypatch.setattr("purerl.ranks._MEMBER_TIMEOUT", timedelta(seconds=_TIMEOUT))
    for _ in range(_TRIES):
        outcomes = _try(intruders)
        if outcomes != [_SUM, _SUM]:
            assert all("the members of the process group" in text for text in outcomes), outcomes
            return
    pytest.fail("the stranger was never the first")
