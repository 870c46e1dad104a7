"""Programs that try to outlive their run, and runs whose owner, supervisor or zygote is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from purerl.errors import SandboxError
from purerl.sandbox import Pool, SandboxSettings
from purerl.sandbox.supervisor.sampling import descendants

from .attacks import LIMITS, marked, marker, open_pool, processes_with, wait_until_gone


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with open_pool("auto") as opened:
        yield opened


_SURVIVORS = {
    "thread": "import threading\nthreading.Thread(target=signal.pause, daemon=True).start()",
    "child": "if os.fork() == 0: signal.pause()",
    "daemon": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(3): os.close(number)
        for number in signal.valid_signals() - {9, 19}: signal.signal(number, signal.SIG_IGN)
        while True: pass
    os._exit(0)
""",
    "program": "os.posix_spawn('/bin/sleep', [MARKER, '1000'], {}, setsid=True)",
    "zombies": "for _ in range(15): os.fork() or os._exit(0)",
}


@pytest.mark.parametrize("name", _SURVIVORS)
def test_nothing_outlives_a_run(name: str, pool: Pool) -> None:
    word = marker()
    result = pool.run_python(marked(_SURVIVORS[name], word))
    assert result.status == "ok", result.stderr_text
    assert processes_with(word) == []


_OWNERS = {
    "run": "run(['/bin/sh', '-c', ': ' + word + '; sleep 1000; :'], limits=limits)",
    "run_python": "run_python(spawn + '; time.sleep(1000)', limits=limits)",
    "pool": "Pool(limits=limits).run_python(spawn + '; time.sleep(1000)')",
    "session": "Session(limits=limits).run(spawn + '; time.sleep(1000)')",
    "idle session": "session = Session(limits=limits); session.run(spawn); time.sleep(1000)",
}


@pytest.mark.parametrize("name", _OWNERS)
def test_everything_ends_when_its_owner_is_killed(name: str) -> None:
    word = marker()
    code = f"""
import time
from purerl.sandbox import Limits, Pool, Session, run, run_python
word, limits = {word!r}, Limits(timeout=1000)
spawn = f"import os, time; os.posix_spawn('/bin/sleep', [{{word!r}}, '1000'], {{{{}}}})"
{_OWNERS[name]}
"""
    owner = subprocess.Popen([sys.executable, "-c", code])
    try:
        _wait_for(lambda: owner.poll() is not None or set(processes_with(word)) - {owner.pid})
        assert owner.poll() is None, "it waits for its program"
    finally:
        owner.kill()
        owner.wait()
    wait_until_gone(word)


def test_no_zombies_are_left_to_a_process_that_does_not_collect_them() -> None:
    """As in a container, whose first process gets all orphans."""
    code = """
import ctypes, time
from purerl.sandbox import Pool, run, run_python
from purerl.sandbox.supervisor.sampling import descendants
import os
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
run(["/bin/true"]), run_python("pass")
with Pool() as pool:
    pool.run_python("pass")
    with pool.session() as session: session.run("1")
end = time.monotonic() + 20
while descendants(os.getpid()) and time.monotonic() < end: time.sleep(0.01)
print(descendants(os.getpid()))
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "[]\n"


def _stat(pid: int) -> list[str]:
    """State, parent, and so on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()


def test_the_kernel_ends_everything_even_if_no_process_of_the_sandbox_can_act() -> None:
    """All of them are stopped when the owner is killed: only the kernel can end them."""
    word = marker()
    code = f"""
from purerl.sandbox import Limits, Pool
Pool(limits=Limits(timeout=1000), preload=()).run_python({marked("signal.pause()", word)!r})
"""
    owner = subprocess.Popen([sys.executable, "-c", code])
    try:
        # Zygote, supervisor, its spawners, process 1, the program. A fork has the word too, until it starts a program.
        _wait_for(lambda: set(processes_with(word)) - {owner.pid} and len(descendants(owner.pid)) >= 5)
        processes = descendants(owner.pid)
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
    finally:
        owner.kill()
        owner.wait()
    wait_until_gone(word)
    _wait_for(lambda: not any(Path(f"/proc/{pid}").exists() and _stat(pid)[0] != "Z" for pid in processes))


def test_the_kernel_ends_a_sandbox_whose_supervisor_is_killed() -> None:
    word = marker()
    with Pool(SandboxSettings(max_concurrent_runs=1), limits=LIMITS) as pool, ThreadPoolExecutor(1) as threads:
        run = threads.submit(pool.run_python, marked("signal.pause()", word))
        _wait_for(lambda: processes_with(word))
        [program] = processes_with(word)
        process_1 = int(_stat(program)[1])
        os.kill(process_1, signal.SIGSTOP)
        os.kill(int(_stat(process_1)[1]), signal.SIGKILL)
        with pytest.raises(SandboxError, match="has ended"):
            run.result()
        wait_until_gone(word)
        assert pool.run_python("print(1)").stdout == b"1\n", "another supervisor has taken its place"


def _wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_pool_goes_on_after_its_zygote_was_killed() -> None:
    with Pool(limits=LIMITS) as pool:
        assert pool.run_python("print(1)").stdout == b"1\n"
        assert pool._zygote is not None
        pool._zygote._process.kill()
        pool._zygote._process.wait()
        outcomes = []
        for _ in range(10):
            try:
                outcomes.append(pool.run_python("print(1)").stdout)
            except Exception as error:  # noqa: BLE001
                outcomes.append(type(error).__name__)
        assert outcomes[-1] == b"1\n"
        assert set(outcomes) <= {b"1\n", "SandboxError"}
