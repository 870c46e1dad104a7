"""Sessions: budgets of one turn and of all, interruption, what ends them, and that they stand still between turns."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from attrs import evolve

from purerl.errors import SandboxError
from purerl.sandbox import Limits, Pool, Session

from .attacks import ACCOUNTINGS, LIMITS, marked, marker, open_pool, processes_with, wait_until_gone

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=ACCOUNTINGS)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with open_pool(request.param) as opened:
        yield opened


SHORT = evolve(LIMITS, timeout=0.5)


def test_turn_that_takes_too_long_is_interrupted_and_keeps_the_variables(pool: Pool) -> None:
    with pool.session(limits=SHORT) as session:
        session.run("x = 1")
        result = session.run("x = 2\nwhile True: pass")
        assert (result.status, result.exit_code) == ("timeout", None)
        assert b"KeyboardInterrupt" in result.stderr
        assert session.is_alive
        assert session.run("x").stdout == b"2\n"


def test_turn_that_ignores_the_interruption_ends_the_session(pool: Pool) -> None:
    source = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    with pool.session(limits=SHORT) as session:
        assert session.run(source).status == "timeout"
        assert not session.is_alive
        with pytest.raises(SandboxError, match="the session is over"):
            session.run("1")


def test_turn_with_too_much_output_is_interrupted(pool: Pool) -> None:
    with pool.session(limits=LIMITS) as session:
        result = session.run("while True: print('x' * 100)")
        assert result.status == "output"
        assert len(result.stdout) + len(result.stderr) <= LIMITS.max_output
        assert session.is_alive
        assert session.run("print(1)").stdout == b"1\n"
        assert session.run(f"print('x' * {LIMITS.max_output})").status == "output"


WRITE = """
import os, struct
def forge(data):
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, data)
        except OSError:
            pass
"""
FORGED = {
    "one answer": "forge(struct.pack('!i', 0))",
    "one byte": "forge(bytes(1))",
    "several answers": "forge(struct.pack('!i', 0) * 30)",
    "zeros": "forge(bytes(12))",
    "a process that writes later": "import time\nif os.fork() == 0:\n    while 1: forge(bytes(12)); time.sleep(0.01)",
    "the answer of this turn": (
        "import sys\nframe = sys._getframe()\nwhile 'token' not in frame.f_locals: frame = frame.f_back\n"
        "forge(struct.pack('!8si', frame.f_locals['token'], 0))"
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_writing_to_the_socket_of_a_session_shifts_no_turn(name: str, pool: Pool) -> None:
    """The last one may end its own turn early, and then every later one is refused."""
    with pool.session(limits=LIMITS) as session:
        assert session.run(f"{WRITE}print('zero')").stdout == b"zero\n"
        results = [session.run(f"{FORGED[name]}\nprint('first')")]
        results += [session.run(f"print({text!r})") for text in ("second", "third") if session.is_alive]
        assert results[-1][:2] == ("killed", -9)
        assert not session.is_alive
        outputs = [result.stdout for result in results]
        assert all(output in (b"", b"first\n", b"second\n") for output in outputs)
        assert b"first" not in b"".join(outputs[1:])


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("kept = []\nwhile True: kept.append(b'x' * 2**20)", "memory"),
        ("while True:\n    try: os.fork()\n    except OSError: pass", "processes"),
        ("os.kill(os.getpid(), 11)", "killed"),
        ("os._exit(3)", "error"),
        ("os._exit(0)", "ok"),
    ],
)
def test_what_ends_a_session(source: str, status: str, pool: Pool) -> None:
    word = marker()
    with pool.session(limits=LIMITS) as session:
        assert session.run(marked("", word)).status == "ok"
        assert session.run(source).status == status
        assert not session.is_alive
        assert processes_with(word) == []


def test_all_turns_together_have_budgets(pool: Pool) -> None:
    with pool.session(limits=LIMITS, total_timeout=0.6, total_output=20) as session:
        assert session.run("import time; time.sleep(0.4)").status == "ok"
        start = time.monotonic()
        assert session.run("time.sleep(20)").status == "timeout"
        assert time.monotonic() - start < 15
        assert session.run("1").status == "timeout"
        assert session.remaining_seconds <= 0
    with pool.session(limits=LIMITS, total_output=20) as session:
        assert session.run("print('x' * 14)").status == "ok"
        assert session.run("print('x' * 14)")[:3] == ("output", None, b"xxxxx")


def test_cpu_time_is_that_of_one_turn(pool: Pool) -> None:
    with pool.session(limits=evolve(LIMITS, cpu_time=0.5)) as session:
        for _ in range(3):
            code = "import time\nend = time.process_time() + .3\nwhile time.process_time() < end: pass"
            assert session.run(code).status == "ok"
        assert session.run("while True: pass").status == "timeout"
        assert session.run("import resource; resource.getrlimit(resource.RLIMIT_CPU)[0]").stdout == b"-1\n"


def test_cpu_time_of_earlier_turns_does_not_hide_how_a_session_ends(pool: Pool) -> None:
    with pool.session(limits=evolve(LIMITS, cpu_time=0.5)) as session:
        for _ in range(2):
            code = "import os, time\nend = time.process_time() + .4\nwhile time.process_time() < end: pass"
            assert session.run(code).status == "ok"
        assert session.run("os.kill(os.getpid(), 9)")[:2] == ("killed", -9)
        assert not session.is_alive


def _process_1(program: int) -> int:
    """Process 1 of the sandbox of a program, as the host sees it."""
    return int(Path(f"/proc/{program}/status").read_text().partition("PPid:")[2].split()[0])


def _wait_for_state(pid: int, states: bytes) -> None:
    end = time.monotonic() + 30
    while _stat(pid)[0] not in states:
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_session_that_ended_is_not_reported_as_interrupted(pool: Pool) -> None:
    """Process 1 reports it late here, as on a busy computer: after the time of the turn."""
    word = marker()
    with pool.session(limits=evolve(LIMITS, timeout=1)) as session, ThreadPoolExecutor(1) as executor:
        session.run(marked("import time", word))
        (program,) = processes_with(word)
        first = _process_1(program)
        _wait_for_state(program, b"T")  # otherwise process 1 could be stopped below before it pauses the program
        wait = "while open('/proc/1/stat').read().rpartition(') ')[2][0] != 'T': time.sleep(0.01)\n"
        turn = executor.submit(session.run, f"{wait}os.kill(os.getpid(), 9)")
        _wait_for_state(program, b"SR")
        os.kill(first, signal.SIGSTOP)
        try:
            _wait_for_state(program, b"Z")
            time.sleep(1.2)
        finally:
            os.kill(first, signal.SIGCONT)
        assert turn.result()[:2] == ("killed", -9)
        assert not session.is_alive


def _ticks(word: str) -> int:
    """CPU time of the processes with `word`."""
    stats = [_stat(pid) for pid in processes_with(word)]
    return sum(int(fields[11]) + int(fields[12]) for fields in stats)


def _stat(pid: int) -> list[bytes]:
    """State, parent, and so on."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()


def test_between_two_turns_nothing_runs(pool: Pool) -> None:
    word = marker()
    source = """
import threading
def spin():
    while True: count[0] += 1
count = [0]
threading.Thread(target=spin, daemon=True).start()
if os.fork() == 0:
    while True: pass
"""
    with pool.session(limits=LIMITS) as session:
        assert session.run(marked(source, word)).status == "ok"
        end = time.monotonic() + 30
        while any(_stat(pid)[0] != b"T" for pid in processes_with(word)):
            assert time.monotonic() < end, "they are stopped"
            time.sleep(0.01)
        before = _ticks(word)
        time.sleep(0.5)
        assert _ticks(word) == before
        count = int(session.run("import time; time.sleep(.3); count[0]").stdout)
        assert int(session.run("count[0]").stdout) >= count > 0
    wait_until_gone(word)


def test_turn_starts_when_everything_has_been_stopped(pool: Pool) -> None:
    """Stopped late, a process that is just being created would stay so: it inherits SIGSTOP, but not SIGCONT."""
    word = marker()
    with pool.session(limits=LIMITS) as session, ThreadPoolExecutor(1) as executor:
        session.run(marked("import time", word))
        (program,) = processes_with(word)
        first = _process_1(program)
        turn = executor.submit(session.run, "time.sleep(0.5)")
        time.sleep(0.1)
        os.kill(first, signal.SIGSTOP)
        try:
            assert turn.result().status == "ok"
            turn = executor.submit(session.run, "time.monotonic()")
            time.sleep(0.3)
            resumed = time.monotonic()
        finally:
            os.kill(first, signal.SIGCONT)
        assert float(turn.result().stdout) > resumed


_ENDS = {
    "closed": "",
    "by itself": "os._exit(0)",
    "by a limit": "kept = []\nwhile True: kept.append(b'x' * 2**20)",
}


@pytest.mark.parametrize("end", _ENDS)
def test_sessions_one_after_the_other_have_a_supervisor_in_common_and_nothing_else(end: str) -> None:
    word = marker()
    with open_pool("auto") as pool:
        for k in range(4):
            with pool.session(files={"number": str(k)}, limits=LIMITS) as session:
                source = "import os; print(os.listdir(), 'left' in globals(), open('number').read())"
                assert session.run(marked(source, word)).stdout == f"['number'] False {k}\n".encode()
                session.run("left = 1\nopen('left', 'w').close()\nif os.fork() == 0:\n    while True: pass")
                session.run(_ENDS[end])
            wait_until_gone(word)
            session.close()
            assert len(pool._session_supervisors) == len(pool._connections) == 1


def test_a_session_that_is_closed_during_a_turn_takes_its_supervisor_with_it(pool: Pool) -> None:
    word = marker()
    with ThreadPoolExecutor(1) as executor:
        session = pool.session(limits=LIMITS)
        session.run(marked("", word))
        turn = executor.submit(session.run, "while True: pass")
        time.sleep(0.3)
        before = len(pool._session_supervisors)
        session.close()
        with pytest.raises(SandboxError):
            turn.result()
        assert len(pool._session_supervisors) == before
    wait_until_gone(word)
    with pool.session(limits=LIMITS) as session:
        assert session.run("1").stdout == b"1\n"


def test_files_stay_from_turn_to_turn_and_are_private(pool: Pool) -> None:
    with pool.session(files={"a.txt": "text"}) as first, pool.session() as second:
        assert first.run("open('b.txt', 'w').write(open('a.txt').read()); open('b.txt').read()").stdout == b"'text'\n"
        assert second.run("import os; os.listdir()").stdout == b"[]\n"
        assert first.run("import os; sorted(os.listdir())").stdout == b"['a.txt', 'b.txt']\n"


def test_code_that_is_not_valid_is_an_error_of_its_turn(pool: Pool) -> None:
    with pool.session() as session:
        for code in ("print(1", b"\xff", "x" * 1000, "(" * 1000, "1\0"):
            result = session.run(code)
            assert result.status == "error", code[:9]
            assert session.is_alive
        assert session.run("raise SystemExit(7)")[:2] == ("error", 7)
        assert session.run("input()").stderr_text.endswith("EOFError: EOF when reading a line\n")


def test_answers_that_a_program_forges_do_not_end_its_limits(pool: Pool) -> None:
    """The socket of the turns is descriptor 3. What a program writes to it changes only its own results."""
    with pool.session(limits=evolve(LIMITS, timeout=3)) as session:
        source = "import os, threading\nfor _ in range(20): os.write(3, b'\\0\\0\\0\\0')"
        for code in (source, "1", "os.write(3, b'x' * 10**7)", "while True: pass", "kept = b'x' * 2**30"):
            if session.is_alive:
                assert session.run(code).status in ("ok", "error", "timeout", "memory", "killed")


def test_session_without_a_pool_and_in_an_event_loop() -> None:
    async def run() -> list[bytes]:
        with Session(limits=Limits(timeout=20)) as session:
            return [(await session.run_async(code)).stdout for code in ("x = 2", "x ** 10")]

    assert asyncio.run(run()) == [b"", b"1024\n"]


def test_session_that_is_dropped_ends() -> None:
    word = marker()
    session = Session(limits=LIMITS)
    session.run(marked("", word))
    assert processes_with(word)
    del session
    wait_until_gone(word)
