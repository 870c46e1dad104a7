"""`python_tool`: what a program prints, its errors, its limits, and an interpreter that keeps its variables."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from purerl.envs.calls import Threads, make_call
from purerl.envs.failures import EnvironmentFailure
from purerl.envs.protocol import Observation, ToolCall
from purerl.envs.python_tool import Interpreter, python, run_program
from purerl.envs.schema import tool_schema
from purerl.envs.settings import EnvironmentSettings
from purerl.envs.sources import load_source, tool_functions
from purerl.sandbox import Limits, SandboxSettings

_ZERO_DIVISION = """\
Traceback (most recent call last):
  File "code.py", line 3, in <module>
    f()
  File "code.py", line 2, in f
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
        ("import sys\nprint(sys.argv)\nsys.exit(2)", "['code.py']"),
        ("print('\u00e9')", "\u00e9"),
        ("print('\udc80')", "?"),
        ("import sys\nsys.stdout.buffer.write(b'\\xff'); None", "\ufffd"),
        ("import os\n'HF_TOKEN' in os.environ, sorted(os.listdir())", "(False, ['code.py', 'program.py'])"),
    ],
)
def test_the_answer_is_what_a_program_prints_and_its_last_value(
    code: str, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert python(code) == answer


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("def f():\n    return 1 / 0\nf()", _ZERO_DIVISION),
        ("print(1", "  File \"code.py\", line 1\n    print(1\n         ^\nSyntaxError: '(' was never closed"),
        ("import os\nprint('a', flush=True)\nos.kill(os.getpid(), 9)", "a\nError: the program was ended by SIGKILL"),
        ("import os\nos.kill(os.getpid(), 50)", "Error: the program was ended by a signal"),
        ("x = b'x' * 2**31", "Error: the program used more than 1024 MiB of memory"),
        ("import socket\nsocket.create_connection(('8.8.8.8', 53))", "OSError: [Errno 101] Network is unreachable"),
        ("open('/etc/shadow')", "FileNotFoundError: [Errno 2] No such file or directory: '/etc/shadow'"),
    ],
)
def test_an_error_is_an_answer_without_the_frames_of_purerl(code: str, error: str) -> None:
    assert python(code).endswith(error)


def test_limits_and_the_length_of_an_answer() -> None:
    assert run_program("while True: pass", timeout=0.5) == "Error: the program did not end within 0.5 seconds"
    settings = SandboxSettings(limits=Limits(max_output=1000, max_processes=5))
    answer = run_program("print('a' * 2000)", settings=settings)
    assert answer.endswith("a\nError: the program wrote more than 1000 bytes")
    answer = run_program("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", settings=settings)
    assert answer == "Error: the program had more than 5 processes and threads"
    answer = run_program("print('a' * 2**12)", max_characters=100)
    assert answer == f"{'a' * 50}\n... 3996 characters are left out ...\n{'a' * 50}"


def test_without_layers_only_by_this_name() -> None:
    assert run_program("import os; os.getpid() > 2", settings=SandboxSettings(layers="none")) == "True"
    assert python("import os; os.getpid() > 2") == "False"


@pytest.mark.parametrize("function", [python, *tool_functions("purerl.envs.python_tool:Interpreter")])
def test_the_schema_describes_the_tool(function: Callable[..., Any]) -> None:
    schema = tool_schema(function)["function"]
    assert (schema["name"], list(schema["parameters"]["properties"])) == ("python", ["code"])
    assert schema["description"].startswith("Run ")


# --- an interpreter for each episode -----------------------------------------------------------------------------


def test_interpreter_keeps_variables_and_says_when_it_has_lost_them() -> None:
    settings = SandboxSettings(limits=Limits(timeout=1))
    with Interpreter(settings) as interpreter:
        assert interpreter.python("x = 6") == "(no output)"
        assert interpreter.python("x * 7") == "42"
        assert "KeyboardInterrupt" in interpreter.python("while True: pass")
        assert interpreter.python("x") == "6"
        lost = (
            "Error: the program was ended by SIGKILL\nThe interpreter has started again, without variables and files."
        )
        assert interpreter.python("import os; os.kill(os.getpid(), 9)") == lost
        assert interpreter.python("x").endswith("NameError: name 'x' is not defined")


def test_interpreter_has_a_budget_for_all_calls() -> None:
    with Interpreter(SandboxSettings(limits=Limits(timeout=5)), total_timeout=0.5) as interpreter:
        interpreter.python("import time; time.sleep(0.6)")
        assert interpreter.python("1") == "Error: no time is left for further code"


def _episodes(tool: str, codes: list[list[str]]) -> list[list[str]]:
    """The answers to the calls of several episodes, which run at the same time."""

    async def play(codes: list[str]) -> list[str]:
        environment = await source.build()
        await environment.reset({}, 0)
        observations = [await environment.step("", [ToolCall("python", {"code": code})]) for code in codes]
        await environment.close()
        return [message["content"] for observation in observations for message in _messages(observation)]

    async def play_all() -> list[list[str]]:
        return await asyncio.gather(*map(play, codes))

    async def run() -> list[list[str]]:
        nonlocal source
        threads = Threads(2)
        source = load_source(EnvironmentSettings(tools=(tool,)), lambda timeout: make_call(threads.run, timeout))
        try:
            return await play_all()
        finally:
            threads.close()

    source: Any = None
    return asyncio.run(run())


def _messages(observation: Observation) -> list[dict[str, Any]]:
    return list(observation.messages)


def test_each_episode_has_an_interpreter_of_its_own() -> None:
    codes = [[f"x = {k}", "x += 1; x", "x * 2"] for k in range(3)]
    answers = _episodes("purerl.envs.python_tool:Interpreter", codes)
    assert answers == [["(no output)", str(k + 1), str(2 * k + 2)] for k in range(3)]
    assert _episodes("purerl.envs.python_tool:python", [["x = 1", "x"]])[0][1].endswith("name 'x' is not defined")


def test_a_sandbox_that_cannot_be_built_is_a_failure_and_not_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing sample, not a reward of 0."""
    monkeypatch.setattr("tests.envs.sandboxed._SETTINGS", SandboxSettings(read_only=("/no-such-directory",)))
    with pytest.raises(EnvironmentFailure, match="(?s)the sandbox cannot be built.*no-such-directory") as failure:
        _episodes("tests.envs.sandboxed:python", [["1"]])
    assert failure.value.failure.function == "tool python"
