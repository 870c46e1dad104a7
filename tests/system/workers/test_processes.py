"""Worker processes end in every state, whatever signals the run ignores."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from purerl.system.workers.processes import Worker
from purerl.system.workers.program import WORK, Program

pytestmark = pytest.mark.started_workers

_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


@pytest.fixture(params=["default", "ignored"])
def _signals(request: pytest.FixtureRequest) -> Iterator[None]:
    """The signal handlers that a process inherits from a terminal, and from nohup or a background script."""
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN if request.param == "ignored" else signal.SIG_DFL)
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def answer(connection: int, status: int) -> None:
    """The work of the worker: it sends a byte, and sleeps."""
    os.write(connection, b"\0")
    time.sleep(600)


def _new_worker() -> Worker:
    return Worker(f"{__name__}:answer", None, max_memory=None)


@pytest.mark.usefixtures("_signals")
def test_worker_can_be_ended_before_its_guard_runs() -> None:
    worker = _new_worker()
    worker.terminate()
    assert worker._guard.wait(60) == 0  # it has ended by itself: `end` kills it after a while
    worker.end()


@pytest.mark.usefixtures("_signals")
def test_worker_can_be_ended_while_it_works() -> None:
    worker = _new_worker()
    assert os.read(worker.connection.fileno(), 1) == b"\0"
    worker.terminate()
    assert worker._guard.wait(60) == 0
    assert worker.end().exit_code == -signal.SIGKILL


def test_worker_can_be_ended_twice() -> None:
    worker = _new_worker()
    worker.end()
    worker.terminate()


_SHARES = """
import multiprocessing, time
from multiprocessing.shared_memory import SharedMemory

def share():
    print("segment", SharedMemory(create=True, size=100).name, flush=True)
    time.sleep(600)

if __name__ == "__main__":
    memory = SharedMemory(create=True, size=100)
    print("segment", memory.name, flush=True)
    multiprocessing.get_context("fork").Process(target=share).start()
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="shared memory is in /dev/shm")
def test_shared_memory_of_killed_processes_is_removed(tmp_path: Path) -> None:
    program = Program((sys.executable, "-c", _SHARES), {**os.environ}, str(tmp_path / "log"))
    worker = Worker(WORK, program, max_memory=None)
    (tmp_path / "log").touch()
    names, end = [], time.monotonic() + 60
    while len(names) < 2 and time.monotonic() < end:
        names = re.findall(r"segment (\S+)", (tmp_path / "log").read_text())
        time.sleep(0.05)
    assert len(names) == 2
    assert all(Path("/dev/shm", name).exists() for name in names)
    worker.end()
    assert not any(Path("/dev/shm", name).exists() for name in names)
