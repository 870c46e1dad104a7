"""`python_tool`: what a program prints, its errors, and its limits."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from purerl.envs.python_tool import python, run_program
from purerl.envs.schema import tool_schema

_ZERO_DIVISION = """\
Traceback (most recent call last):
  File "program.py", line 3, in <module>
    f()
  File "program.py", line 2, in f
    return 1 / 0
           ~~^~~
ZeroDivisionError: division by zero"""


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("print(3)\n4 * 5", "3\n20"),
        ("x = 'a'\nx", "'a'"),
        ("print('a'); None", "a"),
        ("x = 1", "(no output)"),
        ("", "(no output)"),
        ("def f(): return g()\ndef g(): return 7\nprint(f())", "7"),
        ("if __name__ == '__main__':\n    print('main')", "main"),
        ("import sys\nprint(sys.argv)\nsys.exit(2)", "['program.py']"),
        ("print('\u00e9')", "\u00e9"),
    ],
)
def test_the_answer_is_what_a_program_prints_and_its_last_value(code: str, answer: str) -> None:
    assert python(code) == answer


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("def f():\n    return 1 / 0\nf()", _ZERO_DIVISION),
        ("print(1", "  File \"program.py\", line 1\n    print(1\n         ^\nSyntaxError: '(' was never closed"),
        ("import os\nprint('a', flush=True)\nos.kill(os.getpid(), 9)", "a\nError: the program was ended by SIGKILL"),
    ],
)
def test_an_error_is_an_answer_without_the_frames_of_purerl(code: str, error: str) -> None:
    assert python(code) == error


def test_a_program_that_does_not_end_is_killed_with_its_processes() -> None:
    code = "import subprocess\nprint(subprocess.Popen(['sleep', '60']).pid)\nwhile True: pass"
    start = time.monotonic()
    pid, error = run_program(code, timeout=1).split("\n")
    assert time.monotonic() - start < 30
    assert error == "Error: the program did not end within 1 seconds"
    _wait_until_ended(int(pid))


def test_processes_that_a_program_leaves_are_killed() -> None:
    pid = int(python("import subprocess\nprint(subprocess.Popen(['sleep', '60']).pid)"))
    _wait_until_ended(pid)


def _wait_until_ended(pid: int) -> None:
    """Wait until the process has ended; a zombie that nobody has reaped yet has ended."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state == "Z":
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} is still running")


def test_memory_and_output_are_limited() -> None:
    assert python("x = 'a' * 2**31").endswith("MemoryError")
    answer = run_program("print('a' * 2**20)", max_characters=100)
    assert answer == f"{'a' * 50}\n... 1048476 characters are left out ...\n{'a' * 50}"
    assert "left out" in python("while True: print('a' * 2**20)")


def test_a_program_gets_no_variables_of_the_run_and_an_empty_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert python("import os\n'HF_TOKEN' in os.environ, os.listdir()") == "(False, ['program.py'])"
    folder = python("import os\nopen('file', 'w').write('a')\nprint(os.getcwd())\nx = 1")
    assert not Path(folder).exists()
    assert python("x").endswith("NameError: name 'x' is not defined")


def test_text_that_is_not_valid_unicode_is_replaced() -> None:
    assert python("print('\udc80')") == "?"
    assert python("import sys\nsys.stdout.buffer.write(b'\\xff'); None") == "\ufffd"


def test_the_schema_describes_the_tool() -> None:
    function = tool_schema(python)["function"]
    assert (function["name"], list(function["parameters"]["properties"])) == ("python", ["code"])
    assert function["description"].startswith("Run a Python program, and return what it prints")
