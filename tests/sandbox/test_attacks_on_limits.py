"""Programs that try to use more than they may. Each runs with cgroups, if there are any, and with sampling."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from attrs import evolve

from purerl.sandbox import Limits, Pool

from .attacks import ACCOUNTINGS, LIMITS, PRELUDE, marked, marker, open_pool, processes_with, report

_MIB = 2**20


@pytest.fixture(scope="module", params=ACCOUNTINGS)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with open_pool(request.param) as opened:
        yield opened


def _status(pool: Pool, source: str, **changes: object) -> str:
    """The status of a program that is left alone with the limits, of which nothing may be left."""
    word = marker()
    limits: Limits = evolve(LIMITS, **changes)
    result = pool.run_python(marked(source, word), limits=limits)
    assert len(result.stdout) + len(result.stderr) <= limits.max_output
    assert result.seconds < limits.timeout + 10
    is_exact = pool._settings.accounting == "cgroups"  # sampling is late on a busy computer
    assert result.memory < (1.1 * limits.max_memory * _MIB if is_exact else 2**31)
    assert processes_with(word) == []
    assert pool.run_python("print('next')").stdout == b"next\n"
    return result.status


_FORK_BOMB = """
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
_FORK_BOMB_OF_PROGRAMS = """
while True:
    try:
        os.posix_spawn("/bin/sleep", [MARKER, "100"], {})
    except OSError:
        pass
"""
_THREAD_BOMB = """
import threading, time
while True:
    try:
        threading.Thread(target=time.sleep, args=(100,)).start()
    except RuntimeError:
        pass
"""


@pytest.mark.parametrize("source", [_FORK_BOMB, _FORK_BOMB_OF_PROGRAMS, _THREAD_BOMB])
def test_bombs_of_processes_and_threads(source: str, pool: Pool) -> None:
    assert _status(pool, source) == "processes"


def test_as_many_processes_as_allowed(pool: Pool) -> None:
    source = """
import time
children = [os.fork() or (time.sleep(.3), os._exit(0)) for _ in range(19)]
print(json.dumps(sum(os.wait()[1] for _ in children)))
"""
    assert report(pool.run_python(PRELUDE + source)) == 0


_MEMORY_BOMBS = {
    "private": "kept = []\nwhile True: kept.append(b'x' * 2**20)",
    "one allocation": "kept = b'x' * 2**30",
    "in many processes": """
for _ in range(15):
    if os.fork() == 0:
        kept = b'x' * (10 * 2**20)
        signal.pause()
signal.pause()
""",
    "private, of a child that ignores it": """
import mmap
if os.fork() == 0:
    os.setsid()
    kept = []
    while True: kept.append(b'x' * 2**20)
os.wait()
signal.pause()
""",
    "page tables": """
import mmap
area = mmap.mmap(-1, 2**40, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, prot=mmap.PROT_READ)
for k in range(0, 2**40, 2**21): area[k]
""",
}


@pytest.mark.parametrize("name", _MEMORY_BOMBS)
def test_bombs_of_memory(name: str, pool: Pool) -> None:
    assert _status(pool, _MEMORY_BOMBS[name]) == "memory"


_FILE_BOMB = """
def fill(folder):
    for k in range(1000):
        with open(f"{folder}/{k}", "wb") as file:
            for _ in range(4):
                file.write(bytes(2**20))
print(json.dumps([attempt(fill, folder) for folder in ("/tmp", "/dev/shm", ".")]))
"""


def test_files_are_limited_together(pool: Pool) -> None:
    assert report(pool.run_python(PRELUDE + _FILE_BOMB)) == ["ENOSPC", "ENOSPC", "ENOSPC"]


def test_files_are_memory(pool: Pool) -> None:
    assert _status(pool, _FILE_BOMB, max_disk=1000, max_files=1000) == "memory"


_SHARED_MEMORY = """
import mmap
def anonymous():
    kept = []
    while True:  # what is touched stays, although only one page of it is still mapped
        area = mmap.mmap(-1, 8 * 2**20)
        area.write(bytes(8 * 2**20))
        address = ctypes.addressof(ctypes.c_char.from_buffer(area))
        libc.munmap(ctypes.c_void_p(address + 4096), ctypes.c_size_t(8 * 2**20 - 4096))
        kept.append(area)
def memfd():
    descriptor = os.memfd_create("a")
def system_v():
    if libc.shmget(0, ctypes.c_size_t(2**20), 0o1600) < 0:
        raise OSError(ctypes.get_errno(), "")
def zero():
    descriptor = os.open("/dev/zero", os.O_RDWR)
    kept = []
    while True:
        area = mmap.mmap(descriptor, 8 * 2**20, flags=mmap.MAP_SHARED)
        area.write(bytes(8 * 2**20))
        kept.append(area)
"""


@pytest.mark.parametrize("name", ["anonymous", "zero"])
def test_shared_memory_is_counted_or_refused(name: str, pool: Pool) -> None:
    result = pool.run_python(f"{PRELUDE}{_SHARED_MEMORY}\nprint(json.dumps(attempt({name})))")
    if result.status != "memory":
        assert report(result) in ("ENOMEM", "ENOENT")


def test_memory_that_nobody_sees_is_refused(pool: Pool) -> None:
    result = pool.run_python(f"{PRELUDE}{_SHARED_MEMORY}\nprint(json.dumps([attempt(memfd), attempt(system_v)]))")
    assert report(result) == ["EPERM", "EPERM"]


_LOOPS = {
    "loop": "while True: pass",
    "sleep": "signal.pause()",
    "signals are ignored and blocked": """
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    attempt(signal.signal, number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
while True: pass
""",
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "threads": """
import threading
def spin():
    while True: pass
threads = [threading.Thread(target=spin) for _ in range(4)]
for thread in threads: thread.start()
""",
    "output is closed": "os.close(0); os.close(1); os.close(2); signal.pause()",
    "a child has the output": "if os.fork() == 0: signal.pause()\nos.wait()",
}


@pytest.mark.parametrize("name", _LOOPS)
def test_endless_programs(name: str, pool: Pool) -> None:
    assert _status(pool, _LOOPS[name], timeout=0.5) == "timeout"


def test_cpu_time_of_all_processes_counts(pool: Pool) -> None:
    source = "for _ in range(3): os.fork()\nwhile True: pass"
    result = pool.run_python(PRELUDE + source, limits=evolve(LIMITS, cpu_time=0.5))
    assert (result.status, result.seconds < 15) == ("timeout", True)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_flood_of_output(stream: str, pool: Pool) -> None:
    assert _status(pool, f"while True: sys.{stream}.write('x' * 10000)") == "output"
    assert _status(pool, f"sys.{stream}.write('x' * 10001)") == "output"
    assert _status(pool, f"sys.{stream}.write('x' * 10000)") == "ok"


_FILES = """
def huge():
    with open("huge", "wb") as file:
        for _ in range(9): file.write(bytes(2**20))
def sparse():
    with open("sparse", "wb") as file: file.truncate(2**40)
def allocate():
    with open("allocated", "wb") as file: os.posix_fallocate(file.fileno(), 0, 2**30)
def many():
    os.unlink("huge")
    for k in range(100): open(str(k), "w").close()
def deep():
    for k in range(100):
        os.mkdir("d")
        os.chdir("d")
print(json.dumps([attempt(f) for f in (huge, sparse, allocate, many, deep)]))
"""


def test_huge_sparse_and_many_files(pool: Pool) -> None:
    assert report(pool.run_python(PRELUDE + _FILES)) == ["EFBIG", "EFBIG", "EFBIG", "ENOSPC", "ENOSPC"]


def test_open_files_are_limited(pool: Pool) -> None:
    source = "files = []\nprint(json.dumps(attempt(lambda: [files.append(os.pipe()) for _ in range(10**6)])))"
    assert report(pool.run_python(PRELUDE + source)) == "EMFILE"


def test_huge_arguments_and_environment(pool: Pool) -> None:
    source = """
big = "x" * 10**6
print(json.dumps([
    attempt(os.execv, "/bin/true", ["true", big]),
    attempt(os.execve, "/bin/true", ["true"], {"A": big}),
    attempt(os.execv, "/bin/true", ["true"] + ["x" * 10**5] * 10**3),
]))
"""
    assert report(pool.run_python(PRELUDE + source)) == ["E2BIG", "E2BIG", "E2BIG"]


def test_huge_program_and_huge_input(pool: Pool) -> None:
    source = "text = '" + "x" * 10 * _MIB + "'\nimport sys\nprint(len(text), len(sys.stdin.buffer.read()))"
    result = pool.run_python(source, stdin=bytes(5 * _MIB), limits=evolve(LIMITS, max_disk=64, max_file_size=32))
    assert result.stdout == b"%d %d\n" % (10 * _MIB, 5 * _MIB)


def test_limits_of_the_kernel_are_set_and_cannot_be_raised(pool: Pool) -> None:
    source = """
import resource
names = ["NOFILE", "FSIZE", "CPU", "CORE", "NPROC", "MEMLOCK"]
limits = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in names}
higher = [attempt(resource.setrlimit, getattr(resource, f"RLIMIT_{name}"), (hard + 1, hard + 1))
          for name, (_, hard) in limits.items()]
print(json.dumps([limits, higher]))
"""
    limits, higher = report(pool.run_python(PRELUDE + source))
    core = limits.pop("CORE")
    assert core in ([0, 0], [1, 1])
    assert limits == {
        "NOFILE": [256] * 2,
        "FSIZE": [8 * _MIB] * 2,
        "CPU": [22] * 2,
        "NPROC": [36] * 2,
        "MEMLOCK": [0] * 2,
    }
    assert set(higher) <= {"ValueError", "EPERM"}
