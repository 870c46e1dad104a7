"""Input that is not read, much input, streams as files, long integers, and errors that say what failed."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from purerl.errors import SandboxError
from purerl.rewards.kinds.code import Config, build
from purerl.sandbox import Pool
from purerl.sandbox.messages import receive
from purerl.sandbox.supervisor import setup_steps as steps

MUCH = "x" * 10**7


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool() as opened:
        yield opened


@pytest.mark.parametrize("size", [2**16, 2**16 + 1, 10**7])
def test_program_need_not_read_its_input(size: int, pool: Pool) -> None:
    assert pool.run_python("print(7)", stdin="x" * size)[:3] == ("ok", 0, b"7\n")
    assert pool.run(["bash", "-c", "echo 7"], stdin="x" * size)[:3] == ("ok", 0, b"7\n")
    closed = "import os, time; os.close(0); time.sleep(.05); print(7)"
    assert pool.run_python(closed, stdin="x" * size)[:3] == ("ok", 0, b"7\n")
    assert pool.run_python("print(input())", stdin="a\n" + "x" * size)[:3] == ("ok", 0, b"a\n")


def test_program_reads_much_input(pool: Pool) -> None:
    assert pool.run_python("import sys; print(len(sys.stdin.read()))", stdin=MUCH).stdout == b"10000000\n"
    assert pool.run_python("print(len(open('/dev/stdin').read()))", stdin=MUCH).stdout == b"10000000\n"
    assert pool.run(["wc", "-c"], stdin=MUCH).stdout == b"10000000\n"


def test_streams_can_be_opened_as_files(pool: Pool) -> None:
    source = "print(open('/dev/stdin').read(), file=open('/dev/stdout', 'w')); open('/proc/self/fd/2', 'a').write('c')"
    assert pool.run_python(source, stdin="ab")[:4] == ("ok", 0, b"ab\n", b"c")
    script = "cat /dev/stdin > /dev/stdout; echo c > /dev/stderr"
    assert pool.run(["bash", "-c", script], stdin="ab")[:4] == ("ok", 0, b"ab", b"c\n")


@pytest.mark.parametrize(
    "source",
    [
        "import sys; print(7); sys.stdout.close()",
        "import sys\nwith sys.stdout as f:\n    print(7)",
        "import sys; print(7); sys.stdout = None",
        "import sys; print(7); sys.stderr.close()",
        "import sys; print(7); sys.stderr = None",
        "import sys; print(7); sys.stdout = sys.stderr = None; sys.__stdout__.close()",
        "import os, sys; print(7, flush=True); os.close(1)",
        "import io, sys; sys.stdout = io.StringIO(); print(7); sys.__stdout__.write(sys.stdout.getvalue())",
        "f = open(1, 'w'); print(7, file=f)",
        "import os; f = os.fdopen(1, 'wb'); f.write(b'7\\n')",
        "import io, sys; sys.stdout = io.TextIOWrapper(sys.stdout.detach()); print(7)",
        "import atexit, sys; atexit.register(sys.stdout.close); print(7)",
    ],
)
def test_program_may_close_or_replace_its_streams(source: str, pool: Pool) -> None:
    assert pool.run_python(source)[:4] == ("ok", 0, b"7\n", b"")


def test_output_that_cannot_be_written_is_an_error_of_the_program(pool: Pool) -> None:
    result = pool.run_python("import os; print(7); os.close(1)")
    assert result[:3] == ("error", 120, b"")
    assert "Bad file descriptor" in result.stderr_text
    assert "purerl" not in result.stderr_text
    assert pool.run_python("import sys; sys.stderr.close(); sys.exit('bye')")[:4] == ("error", 1, b"", b"")


def test_programs_have_the_signals_of_a_new_process(pool: Pool) -> None:
    script = "yes | head -1; echo ${PIPESTATUS[0]}; trap -p"
    assert pool.run(["bash", "-c", script])[:3] == ("ok", 0, b"y\n141\n")  # 128 and SIGPIPE
    source = "from signal import *; print(*[getsignal(n) is d for n, d in ((SIGPIPE, SIG_IGN), (SIGHUP, SIG_DFL))])"
    assert pool.run_python(source).stdout == b"True True\n"


def test_integers_of_any_length_are_printed_and_read(pool: Pool) -> None:
    assert len(pool.run_python("print(2**20000)").stdout) == 6022
    assert pool.run_python("print(int(input()) % 10)", stdin="7" * 30000).stdout == b"7\n"
    assert len(pool.run(["python3", "-c", "print(2**20000)"]).stdout) == 6022
    with pool.session() as session:
        assert len(session.run("2**20000").stdout) == 6022


@pytest.mark.parametrize(("program", "score"), [("print(7)", 1.0), ("print(8)", 0.0), ("input(); print(7)", 1.0)])
def test_reward_does_not_depend_on_what_a_program_reads(program: str, score: float) -> None:
    with closing(build(Config(tests="stdin"))) as code:
        assert code(f"```python\n{program}\n```", {"inputs": [f"1\n{MUCH}"], "outputs": ["7"]}) == score
        assert code(f"<answer>{program}</answer>", {"inputs": ["x" * 169_000], "outputs": ["7"]}) == score


def test_error_names_the_command(pool: Pool) -> None:
    with pytest.raises(SandboxError, match=r"got:  \[Errno 2\] No such file or directory: 'no-such-program'\n"):
        pool.run(["no-such-program"])


def _open_a_file() -> None:
    Path("/no/such/file").read_bytes()


def _close_a_descriptor() -> None:
    os.close(10**6)


def _look_up_a_key() -> None:
    raise KeyError("name")


@pytest.mark.parametrize("named", [None, "files"])
@pytest.mark.parametrize(
    ("function", "number", "text"),
    [
        (_open_a_file, 2, "[Errno 2] No such file or directory: '/no/such/file'"),
        (_close_a_descriptor, 9, "[Errno 9] Bad file descriptor (in _close_a_descriptor, test_streams.py, line "),
        (_look_up_a_key, None, "KeyError: 'name' (in _look_up_a_key, test_streams.py, line "),
    ],
)
def test_failure_of_a_step_names_the_path_or_the_call(
    named: str | None, function: Callable[[], None], number: int | None, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", end)
    ours, theirs = socket.socketpair()
    within = nullcontext() if named is None else steps.step(named)
    with ours, theirs:
        with pytest.raises(SystemExit), steps.reporting(theirs), within:
            function()
        message = receive(ours)
    assert message is not None
    error = message.header["error"]
    assert error["errno"] == number
    assert error["text"].startswith(text)
    assert error["step"] == (named if named and number else "start")
