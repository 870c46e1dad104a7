"""A rank whose other ranks do not come says what it waits for, gives up in time, and can be interrupted."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.forks import PROGRAMS

_SCRIPT = """
import signal
import sys
from pathlib import Path
from purerl.placement import join, process_group
from purerl.placement.settings import Placement

process_group._SECONDS_BETWEEN_MESSAGES = 0.2
signal.signal(signal.SIGINT, signal.default_int_handler)
with join.join_ranks(Placement(timeout=float(sys.argv[1])), Path(sys.argv[2])):
    pass
"""


@contextmanager
def _started(
    rank: int, timeout: float, folder: object, create: type[subprocess.Popen[str]] = PROGRAMS.Popen
) -> Iterator[subprocess.Popen[str]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    world = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-c", _SCRIPT, str(timeout), str(folder)]
    with create(command, env=os.environ | world, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_that_is_alone_gives_up_and_says_what_it_has_waited_for(rank: int, tmp_path: object) -> None:
    with _started(rank, 2, tmp_path) as process:
        assert process.stderr is not None
        text = process.stderr.read()
        assert process.wait(60) == 1
    assert f"rank {rank} of 2 waits for the others at 127.0.0.1:" in text
    assert f"EngineError: rank {rank} did not meet the other ranks\n  got:  " in text
    assert "within placement.timeout = 2 s\n  do:   start all of them, or correct" in text


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_that_waits_for_the_others_can_be_interrupted(rank: int, tmp_path: object) -> None:
    with _started(rank, 600, tmp_path, PROGRAMS.Popen if rank else subprocess.Popen) as process:
        assert process.stderr is not None
        assert any("waits for the others" in line for line in process.stderr)  # torch warns first without a network
        process.send_signal(signal.SIGINT)
        text = process.stderr.read()
        assert process.wait(60) == -signal.SIGINT
    assert text.rstrip().endswith("KeyboardInterrupt")
