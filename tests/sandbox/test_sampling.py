"""Measuring processes by /proc: what they use, and that those which end at the same time are no error."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from purerl.sandbox import Limits, Pool, SandboxSettings
from purerl.sandbox.supervisor.sampling import Sampler, descendants

_MIB = 2**20


@pytest.fixture
def proc() -> Iterator[int]:
    descriptor = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


@contextmanager
def _process(code: str) -> Iterator[int]:
    """A process that has run `code`, and waits."""
    source = f"import os, sys, threading, time\n{code}\nprint('ready', flush=True)\nsys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    yield process.pid
    process.communicate()


def test_memory_threads_and_cpu_time(proc: int) -> None:
    code = f"kept = b'x' * {50 * _MIB}\nfor _ in range(3): threading.Thread(target=sys.stdin.read, daemon=True).start()"
    with _process(code + "\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass") as pid:
        usage = Sampler(proc, None, lambda: [pid]).usage(with_memory=True)
        assert 50 * _MIB < usage.memory < 150 * _MIB
        assert usage.processes == 4
        assert usage.cpu_seconds >= 0.2
        assert Sampler(proc, None, lambda: [pid]).usage(with_memory=False).memory == 0


def test_shared_pages_count_once_if_it_matters(proc: int) -> None:
    code = f"kept = b'x' * {50 * _MIB}\nfor _ in range(3): os.fork() or time.sleep(60) or os._exit(0)"
    with _process(code) as pid:
        pids = [pid, *descendants(pid)]
        sampler = Sampler(proc, None, lambda: pids)
        assert len(pids) == 4
        assert sampler.usage(with_memory=True).memory > 4 * 50 * _MIB
        assert 50 * _MIB < sampler.exact_memory() < 100 * _MIB
        for child in pids[1:]:
            os.kill(child, 9)


def test_processes_that_have_ended_use_nothing(proc: int, tmp_path: Path) -> None:
    zombie = subprocess.Popen(["/bin/true"])
    while Path(f"/proc/{zombie.pid}/stat").read_text().rpartition(") ")[2][0] != "Z":
        time.sleep(0.01)
    sampler = Sampler(proc, None, lambda: [zombie.pid, 2**22 + 1])
    assert sampler.usage(with_memory=True).memory == 0
    assert sampler.exact_memory() == 0
    zombie.wait()
    empty = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert Sampler(empty, empty).usage(with_memory=False) == (0, 0.0, 0), "process 1 has ended, too"
    finally:
        os.close(empty)


def test_runs_may_end_at_any_moment_of_a_measurement() -> None:
    """Their processes, and process 1 of the sandbox, end while the supervisor reads what they use."""
    settings = SandboxSettings(accounting="sampling", max_concurrent_runs=2)
    source = "import os, time\nfor _ in range(5): os.fork() or time.sleep(60)\ntime.sleep({})"
    with Pool(settings, limits=Limits(timeout=20, max_memory=20)) as pool:
        statuses = {pool.run_python(source.format(0.0097 + k * 1e-4)).status for k in range(40)}
    assert statuses <= {"ok", "memory"}
