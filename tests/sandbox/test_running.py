"""`run` and `run_python`: input, output, exit codes, files, and errors of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from purerl.errors import InputError, SandboxError
from purerl.sandbox import Limits, Pool, Session, run, run_python

_DIVISION = b"""\
Traceback (most recent call last):
  File "/sandbox/program.py", line 3, in <module>
    f()
  File "/sandbox/program.py", line 2, in f
    return 1 / 0
           ~~^~~
ZeroDivisionError: division by zero
"""
_SYNTAX = b"""\
  File "/sandbox/program.py", line 1
    print(1
         ^
SyntaxError: '(' was never closed
"""


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool() as opened:
        yield opened


@pytest.mark.parametrize(
    ("source", "status", "code", "stdout", "stderr"),
    [
        ("print(input() + '!')", "ok", 0, b"text!\n", b""),
        ("import sys; sys.exit(3)", "error", 3, b"", b""),
        ("import sys; sys.exit('no')", "error", 1, b"", b"no\n"),
        ("import os; os.kill(os.getpid(), 11)", "killed", -11, b"", b""),
        ("def f():\n    return 1 / 0\nf()", "error", 1, b"", _DIVISION),
        ("print(1", "error", 1, b"", _SYNTAX),
        ("import sys; sys.stdout.buffer.write(bytes(range(256)))", "ok", 0, bytes(range(256)), b""),
        ("import threading, time\nthreading.Thread(target=lambda: (time.sleep(.1), print('late'))).start()", "ok", 0,
         b"late\n", b""),
        ("import atexit; atexit.register(print, 'end')", "ok", 0, b"end\n", b""),
    ],
)  # fmt: skip
def test_result_of_a_python_program(
    source: str, status: str, code: int, stdout: bytes, stderr: bytes, pool: Pool
) -> None:
    result = pool.run_python(source, stdin="text\n")
    assert result[:4] == (status, code, stdout, stderr)
    assert 0 < result.seconds < 10


def test_single_run_is_like_one_of_a_pool() -> None:
    result = run_python("import sys; print(sys.argv, __name__, len(sys.stdin.read()))", stdin=b"x" * 2**20)
    assert result[:4] == ("ok", 0, b"['/sandbox/program.py'] __main__ 1048576\n", b"")


def test_command_gets_files_and_stdin() -> None:
    result = run(["/bin/sh", "-c", "cat a/b.txt; cat; echo $#"], files={"a/b.txt": "file "}, stdin="stdin ")
    assert result[:3] == ("ok", 0, b"file stdin 0\n")


def test_runs_are_concurrent_and_can_be_awaited(pool: Pool) -> None:
    async def double(k: int) -> bytes:
        return (await pool.run_python_async("print(2 * int(input()))", stdin=str(k))).stdout

    async def double_all() -> list[bytes]:
        return await asyncio.gather(*map(double, range(20)))

    assert asyncio.run(double_all()) == [b"%d\n" % (2 * k) for k in range(20)]
    with ThreadPoolExecutor(5) as threads:
        outputs = threads.map(lambda k: pool.run(["/bin/echo", str(k)]).stdout, range(20))
    assert list(outputs) == [b"%d\n" % k for k in range(20)]


def test_session_keeps_its_variables() -> None:
    with Session(limits=Limits(timeout=5)) as session:
        assert session.run("x = 6")[:3] == ("ok", 0, b"")
        assert session.run("print('a')\nx * 7")[:3] == ("ok", 0, b"a\n42\n")
        failed = session.run("def f():\n    return 1 / 0\nf()")
        assert failed.stderr == _DIVISION.replace(b"/sandbox/program.py", b"<cell 3>")
        assert (failed.status, failed.exit_code, session.is_alive) == ("error", 1, True)


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", "", "a\0b"])
def test_file_outside_of_the_working_directory_is_refused(path: str) -> None:
    with pytest.raises(InputError, match="relative path"):
        run_python("", files={path: "x"})


def test_program_that_does_not_exist_is_an_error_of_the_caller() -> None:
    with pytest.raises(SandboxError, match="No such file") as error:
        run(["/usr/bin/no-such-program"])
    assert "do:" in str(error.value)
    with pytest.raises(InputError, match="a program"):
        run([])
