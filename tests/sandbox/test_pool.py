"""A pool: concurrency, cancellation, its end, its restart, and what its programs share."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from purerl.errors import InputError, SandboxError
from purerl.sandbox import Limits, Pool, SandboxSettings, open_sandbox

from .attacks import LIMITS, marked, marker, processes_with, wait_until_gone


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(SandboxSettings(max_concurrent_runs=2), limits=LIMITS, preload=("json", "decimal")) as opened:
        yield opened


def _wait_for(word: str) -> None:
    end = time.monotonic() + 30
    while not processes_with(word):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_preloaded_modules_are_there_and_those_of_the_sandbox_are_not(pool: Pool) -> None:
    source = "import sys; print('decimal' in sys.modules, [m for m in sys.modules if m.startswith('purerl')])"
    assert pool.run_python(source).stdout == b"True []\n"


def test_programs_are_as_in_a_new_interpreter(pool: Pool) -> None:
    source = """
import __main__, sys, gc, threading, signal, pickle, random
class A: pass
print(__name__, __main__.A is A, pickle.loads(pickle.dumps(A())).__class__ is A, __file__, sys.argv)
print(gc.isenabled(), threading.current_thread() is threading.main_thread(), threading.active_count())
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGCHLD) == 0)
print(sys.getrecursionlimit(), sys.stdin.encoding, sys.stdout.encoding, sys.flags.utf8_mode, hash("a"))
def depth(n):
    try: return depth(n + 1)
    except RecursionError: return n
print(depth(1) > 985)
"""
    lines = pool.run_python(source).stdout_text.splitlines()
    assert lines[0] == "__main__ True True /sandbox/program.py ['/sandbox/program.py']"
    assert lines[1:3] == ["True True 1", "True True"]
    assert lines[3].startswith("1000 utf-8 utf-8 ")
    assert lines[4] == "True"


def test_random_numbers_differ_and_hashes_do_not(pool: Pool) -> None:
    outputs = [pool.run_python("import random; print(random.random()); print(hash('a'))").stdout for _ in range(4)]
    numbers, hashes = zip(*(output.split() for output in outputs), strict=True)
    assert (len(set(numbers)), len(set(hashes))) == (4, 1)


def test_runs_beyond_the_number_wait_and_their_time_begins_when_they_start(pool: Pool) -> None:
    def run(_: int) -> float:
        return pool.run_python("import time; time.sleep(0.2)").seconds

    start = time.monotonic()
    with ThreadPoolExecutor(6) as threads:
        seconds = list(threads.map(run, range(6)))
    assert time.monotonic() - start > 0.6
    assert max(seconds) < LIMITS.timeout


def test_the_event_loop_runs_while_programs_do(pool: Pool) -> None:
    async def main() -> int:
        ticks = 0
        run = asyncio.ensure_future(pool.run_python_async("import time; time.sleep(0.5)"))
        while not run.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return ticks

    assert asyncio.run(main()) > 5


def test_a_canceled_run_is_ended(pool: Pool) -> None:
    word = marker()

    async def main() -> None:
        task = asyncio.ensure_future(pool.run_python_async(marked("signal.pause()", word)))
        waiting = [asyncio.ensure_future(pool.run_python_async("print(1)")) for _ in range(4)]
        await asyncio.to_thread(_wait_for, word)
        for one in (task, waiting[3]):
            one.cancel()
        results = await asyncio.gather(task, *waiting, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert [result.stdout for result in results[1:4]] == [b"1\n"] * 3  # type: ignore[union-attr]

    asyncio.run(main())
    wait_until_gone(word)
    assert pool.run_python("print(2)").stdout == b"2\n"


def test_close_ends_runs_that_are_in_progress() -> None:
    word = marker()
    pool = Pool(limits=Limits(timeout=1000))
    outcomes: list[object] = []

    def run() -> None:
        try:
            outcomes.append(pool.run_python(marked("signal.pause()", word)))
        except SandboxError as error:
            outcomes.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    _wait_for(word)
    pool.close()
    thread.join(30)
    wait_until_gone(word)
    assert isinstance(outcomes[0], SandboxError)
    pool.close()
    with pytest.raises(RuntimeError):
        pool.run_python("")


def test_a_pool_lives_longer_than_the_thread_that_opens_it() -> None:
    """The kernel ends a process together with the thread that has started it."""
    opened: list[Pool] = []
    thread = threading.Thread(target=lambda: opened.append(Pool(limits=LIMITS)))
    thread.start()
    thread.join()
    with opened[0] as pool:
        for _ in range(3):
            assert pool.run_python("print(1)").stdout == b"1\n"
            time.sleep(0.05)


def test_a_pool_in_a_fork_of_its_process_is_refused(pool: Pool) -> None:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def use() -> None:
        try:
            pool.run_python("")
        except SandboxError as error:
            sender.send(str(error))

    process = context.Process(target=use)
    process.start()
    assert receiver.poll(60)
    assert "in a fork of its process" in receiver.recv()
    process.join()
    assert pool.run_python("print(1)").stdout == b"1\n"


def test_open_sandbox_is_a_pool_on_this_computer() -> None:
    with open_sandbox(SandboxSettings(limits=LIMITS)) as sandbox:
        assert isinstance(sandbox, Pool)
        assert sandbox.run(["/bin/echo", "a"]).stdout == b"a\n"
        with pytest.raises(InputError):
            sandbox.run([])
