"""The remote sandbox, with a real HTTP server that follows the interface of SandboxFusion."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from purerl.envs.python_tool import Interpreter, run_program
from purerl.errors import ConfigError, InputError, SandboxError
from purerl.sandbox import Limits, Pool, Sandbox, SandboxSettings, open_sandbox, remote, run, run_python

from .fusion import FusionServer, serve


@pytest.fixture(scope="module")
def server() -> Iterator[FusionServer]:
    with serve() as started:
        yield started


@pytest.fixture(autouse=True)
def _quick_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_WAIT_SECONDS", 0.01)


@pytest.fixture
def sandbox(server: FusionServer) -> Iterator[Sandbox]:
    with open_sandbox(SandboxSettings(remote=server.url)) as opened:
        yield opened


_PROGRAMS = [
    "print(input() + '!')",
    "import sys; sys.exit(3)",
    "import sys; print('caf\u00e9'); sys.stderr.write('oops'); sys.exit(1)",
    "import os; os.kill(os.getpid(), 9)",
    "print(open('a/b.txt').read())",
    "while True: pass",
]


def test_results_are_those_of_a_sandbox_on_this_computer(sandbox: Sandbox) -> None:
    with Pool() as local:
        for source in _PROGRAMS:
            arguments = {"stdin": "text\n", "files": {"a/b.txt": "content"}, "limits": Limits(timeout=1)}
            here, there = (one.run_python(source, **arguments) for one in (local, sandbox))
            assert here[:4] == there[:4], source
            assert (there.seconds > 0, there.memory) == (here.status != "timeout", 0), "the server tells no memory"


def test_command_runs_in_a_shell(sandbox: Sandbox) -> None:
    assert sandbox.run(["echo", "a b", "$HOME", "'"]).stdout == b"a b $HOME '\n"


def test_requests_have_the_documented_fields(sandbox: Sandbox, server: FusionServer) -> None:
    server.requests.clear()
    limits = Limits(timeout=7, max_memory=100)
    sandbox.run_python("print(1)", files={"a": b"\xff\x00"}, limits=limits)
    assert server.requests == [
        {
            "language": "python", "code": "print(1)", "stdin": "", "files": {"a": "/wA="}, "compile_timeout": 7,
            "run_timeout": 7, "memory_limit_MB": 100,
        }
    ]  # fmt: skip


def test_single_runs_and_tools_can_be_remote(server: FusionServer) -> None:
    settings = SandboxSettings(remote=f"{server.url}/")
    assert run_python("print(1)", settings=settings).stdout == b"1\n"
    assert run(["echo", "2"], settings=settings).stdout == b"2\n"
    assert run_program("x = 3\nx", settings=settings) == "3"
    with pytest.raises(ConfigError, match="a tool that keeps no variables"):
        Interpreter(settings)


def test_runs_are_concurrent_and_can_be_awaited(sandbox: Sandbox) -> None:
    async def run_all() -> list[bytes]:
        runs = (sandbox.run_python_async("print(input())", stdin=str(k)) for k in range(8))
        return [result.stdout for result in await asyncio.gather(*runs)]

    assert asyncio.run(run_all()) == [b"%d\n" % k for k in range(8)]


def test_output_is_limited_here(sandbox: Sandbox) -> None:
    result = sandbox.run_python("import sys; print('x' * 100); sys.stderr.write('y')", limits=Limits(max_output=60))
    assert result == ("output", None, b"x" * 60, b"", result.seconds, 0)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_busy_server_is_asked_again(status: int, sandbox: Sandbox, server: FusionServer) -> None:
    server.replies[:] = [(status, "busy"), (status, "busy")]
    assert sandbox.run_python("print(1)").stdout == b"1\n"
    server.replies[:] = [(status, "busy")] * 3
    with pytest.raises(SandboxError, match=f"(?s)does not answer.*status {status}"):
        sandbox.run_python("print(1)")
    assert server.replies == []


_SANDBOX_ERROR = {"status": "SandboxError", "message": "no more memory", "run_result": None}


def _finished(**values: Any) -> str:
    result = {"status": "Finished", "stdout": "", "stderr": "", "execution_time": 0.1, "return_code": 0}
    return json.dumps({"status": "Success", "message": "", "run_result": result | values})


_ERROR_OF_RUN = {"status": "Success", "message": "", "run_result": {"status": "Error", "stderr": "no python"}}


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (500, "oops", "refuses a run.*500"),
        (422, '{"detail": "language"}', "refuses a run.*422"),
        (200, "not json", "refuses a run"),
        (200, json.dumps(_SANDBOX_ERROR), "no more memory"),
        (200, json.dumps(_ERROR_OF_RUN), "no python"),
        (200, "{}", "could not run a program"),
        (200, "[]", "could not run a program"),
        (200, _finished(return_code="1"), "could not run a program"),
        (200, _finished(return_code=True), "could not run a program"),
        (200, _finished(execution_time="nan"), "could not run a program"),
        (200, _finished(execution_time=-1.0), "could not run a program"),
        (200, _finished(execution_time="1e400"), "could not run a program"),
    ],
)
def test_failures_of_the_server_are_no_results(
    status: int, body: str, text: str, sandbox: Sandbox, server: FusionServer
) -> None:
    server.replies[:] = [(status, body)]
    with pytest.raises(SandboxError, match=f"(?s){text}"):
        sandbox.run_python("print(1)")


def test_failed_compilation_is_an_error_of_the_program(sandbox: Sandbox, server: FusionServer) -> None:
    compilation = {"status": "Finished", "return_code": 1, "stdout": "", "stderr": "syntax", "execution_time": 0.5}
    server.replies[:] = [(200, json.dumps({"status": "Failed", "message": "", "compile_result": compilation}))]
    assert sandbox.run_python("x") == ("error", 1, b"", b"syntax", 0.5, 0)


def test_a_server_that_is_not_there_is_an_error_with_a_remedy() -> None:
    with pytest.raises(SandboxError, match=r"(?s)127.0.0.1:9/run_code does not answer.*start the server"):
        run_python("", settings=SandboxSettings(remote="http://127.0.0.1:9"))


def test_limits_that_the_server_does_not_have_are_refused(sandbox: Sandbox) -> None:
    with pytest.raises(ConfigError, match="limits.max_processes has no effect"):
        sandbox.run_python("", limits=Limits(max_processes=3))


def test_bytes_that_are_no_text_and_files_outside_are_refused(sandbox: Sandbox) -> None:
    with pytest.raises(InputError, match="UTF-8"):
        sandbox.run_python("", stdin=b"\xff")
    with pytest.raises(InputError, match="relative path"):
        sandbox.run_python("", files={"/a": ""})


TOKEN = "0123456789abcdef-of-the-test"


def test_token_of_the_variable_is_sent_and_not_shown(server: FusionServer, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SandboxSettings(remote=server.url)
    server.tokens.clear()
    assert run_python("print(1)", settings=settings).stdout == b"1\n"
    monkeypatch.setenv("PURERL_SANDBOX_TOKEN", TOKEN)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # a proxy does not get it
    assert run_python("print(1)", settings=settings).stdout == b"1\n"
    assert server.tokens == [None, f"Bearer {TOKEN}"]
    server.replies[:] = [(200, json.dumps({"status": "refused", "token": TOKEN}))]
    with pytest.raises(SandboxError, match=r"'token': '\*\*\*'|\[token\]") as caught:
        run_python("print(1)", settings=settings)
    assert TOKEN not in str(caught.value)
    for status in (401, 302):
        server.replies[:] = [(status, "no")]
        with pytest.raises(SandboxError, match="(?s)refuses a run.*check the setting remote, and PURERL_SANDBOX_TOKEN"):
            run_python("print(1)", settings=settings)
    assert server.replies == []


def test_token_is_in_a_private_file(server: FusionServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN, encoding="utf-8")
    monkeypatch.setenv("PURERL_SANDBOX_TOKEN_FILE", str(path))
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="need: a file of user"):
        run_python("print(1)", settings=SandboxSettings(remote=server.url))
    path.chmod(0o600)
    server.tokens.clear()
    assert run_python("print(1)", settings=SandboxSettings(remote=server.url)).stdout == b"1\n"
    assert server.tokens == [f"Bearer {TOKEN}"]
