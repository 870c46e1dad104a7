"""Tools of MCP servers: real servers, written with the package mcp, over stdin and stdout and over HTTP."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from purerl.envs.check import check_environment_settings
from purerl.envs.hosts import episode, open_host
from purerl.envs.protocol import ToolCall
from purerl.envs.settings import EnvironmentSettings
from purerl.errors import ConfigError
from tests.envs.hosts import MODULE, failure_of, hosted

pytest.importorskip("mcp", minversion=None, reason="the package mcp is not installed")

SERVER = """
import os, sys, time
from mcp.server import MCPServer

server = MCPServer("calculator")

@server.tool()
def multiply(first: int, second: int) -> int:
    "Multiply two numbers."
    return first * second

@server.tool()
def pid() -> int:
    "The process id."
    return os.getpid()

@server.tool()
def divide(first: int, second: int) -> float:
    "Divide."
    return first / second

@server.tool()
async def waits() -> str:
    "Wait for a long time."
    import asyncio
    await asyncio.sleep(600)
    return "done"

@server.tool()
def crashes() -> str:
    "End the process."
    os._exit(9)

if len(sys.argv) > 1:
    server.run("streamable-http", port=int(sys.argv[1]))
else:
    server.run()
"""


def test_exception_of_a_tool_is_one_answer(command: str) -> None:
    code = f"""
import asyncio
from purerl.envs.hosts import episode, open_host
from purerl.envs.protocol import ToolCall
from purerl.envs.settings import EnvironmentSettings

async def ask():
    host = open_host(EnvironmentSettings(mcp=({command!r},), timeout=300))
    async with episode(host) as opened:
        await opened.reset({{}}, 0)
        answer = await opened.step("", [ToolCall(id="a", name="divide", arguments={{"first": 1, "second": 0}})])
    await host.close()
    print(answer.messages[0]["content"])

asyncio.run(ask())
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (process.stdout, process.stderr) == ("Error: Error executing tool divide\n", "")


def test_server_that_does_not_start_is_one_message_with_what_it_wrote() -> None:
    command = shlex.join([sys.executable, "-c", "import no_such_package_of_mine"])
    failure = hosted(lambda host: failure_of(host.open()), servers(command))
    assert "it wrote: " in failure.traceback
    assert failure.traceback.rstrip().endswith("ModuleNotFoundError: No module named 'no_such_package_of_mine'")


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mcp") / "calculator_server.py"
    path.write_text(SERVER)
    return path


@pytest.fixture(scope="module")
def command(script: Path) -> str:
    return shlex.join([sys.executable, str(script)])


@pytest.fixture(scope="module")
def url(script: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([sys.executable, str(script), str(port)]) as process:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
        process.kill()


def servers(*mcp: str, **more) -> EnvironmentSettings:
    return EnvironmentSettings(mcp=mcp, **({"num_workers": 1, "timeout": 60.0} | more))


async def answer(opened, name: str, **arguments) -> str:
    observation = await opened.step("", [ToolCall(name, arguments, "call 0")])
    return observation.messages[0]["content"]


def test_variable_in_a_url_is_sent_and_not_shown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(host):
        async with episode(host) as opened:
            await opened.reset({}, 0)
            return await answer(opened, "multiply", first=2, second=3)

    async def fails(host):
        return await failure_of(host.open())

    server, nobody = f"{url}?key=${{MCP_TEST_KEY}}", "http://127.0.0.1:9/mcp?key=${MCP_TEST_KEY}"
    monkeypatch.delenv("MCP_TEST_KEY", raising=False)
    with pytest.raises(ConfigError, match="no environment variable MCP_TEST_KEY"):
        check_environment_settings(servers(server))
    monkeypatch.setenv("MCP_TEST_KEY", "se/cret+1")
    check_environment_settings(servers(server))
    assert hosted(main, servers(server)) == "6"
    failure = hosted(fails, servers(nobody))
    assert "the MCP server cannot be used" in failure.traceback
    assert not any(value in str(failure) for value in ("se/cret+1", "se%2Fcret%2B1"))


@pytest.mark.parametrize("kind", ["command", "url"])
def test_tools_of_a_server(kind: str, request: pytest.FixtureRequest) -> None:
    async def main(host):
        async with episode(host) as first, episode(host) as second:
            await first.reset({}, 0)
            await second.reset({}, 0)
            by_name = {tool["function"]["name"]: tool["function"] for tool in first.tools or ()}
            assert by_name["multiply"]["description"] == "Multiply two numbers."
            assert by_name["multiply"]["parameters"]["required"] == ["first", "second"]
            assert await answer(first, "multiply", first=6, second=7) == "42"
            assert await answer(first, "pid") == await answer(second, "pid")
            assert (await answer(first, "divide", first=1, second=0)).startswith("Error: ")
            assert (await answer(first, "multiply", first="six", second=7)).startswith("Error: ")
            assert await answer(first, "multiply", first=2, second=2) == "4", "it still works"

    hosted(main, servers(request.getfixturevalue(kind)))


def test_tools_of_a_server_beside_python_functions(command: str) -> None:
    async def main(host):
        async with episode(host) as opened:
            await opened.reset({}, 0)
            assert await answer(opened, "add", first=1, second=2) == "3"
            assert await answer(opened, "multiply", first=2, second=3) == "6"

    hosted(main, servers(command, tools=(f"{MODULE}:add",)))


def test_server_that_dies_fails_the_episode_and_is_started_again_for_the_next(command: str) -> None:
    async def main(host):
        async with episode(host) as opened:
            await opened.reset({}, 0)
            before = await answer(opened, "pid")
            failure = await failure_of(opened.step("", [ToolCall("crashes")]))
            assert failure.kind == "died"
            assert failure.function.startswith("tool crashes of ")
        async with episode(host) as opened:
            await opened.reset({}, 0)
            assert await answer(opened, "pid") != before

    hosted(main, servers(command))


def test_call_that_is_late_fails_the_episode(command: str) -> None:
    async def main(host):
        async with episode(host) as first, episode(host) as second:
            await first.reset({}, 0)
            await second.reset({}, 0)
            assert (await failure_of(first.step("", [ToolCall("waits")]))).kind == "timed out"
            assert await answer(second, "multiply", first=2, second=2) == "4"

    hosted(main, servers(command, timeout=10.0))


def test_server_that_cannot_be_started_is_a_failure() -> None:
    failure = hosted(lambda host: failure_of(host.open()), servers(f"{sys.executable} -c pass"))
    assert failure.kind == "died"
    assert "cannot be used" in failure.traceback


def test_server_ends_with_the_run(command: str) -> None:
    async def main(host):
        async with episode(host) as opened:
            await opened.reset({}, 0)
            return int(await answer(opened, "pid"))

    pid = hosted(main, servers(command))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_in_the_event_loop_the_server_ends_with_the_host(command: str) -> None:
    settings = EnvironmentSettings(mcp=(command,), run_in="event_loop", timeout=60.0)

    async def main():
        host = open_host(settings)
        async with episode(host) as opened:
            await opened.reset({}, 0)
            pid = int(await answer(opened, "pid"))
        await host.close()
        return pid

    with pytest.raises(ProcessLookupError):
        os.kill(asyncio.run(main()), signal.SIGKILL)


def test_check_of_the_settings(command: str) -> None:
    check_environment_settings(servers(command))
    with pytest.raises(ConfigError, match="run_in has no effect"):
        check_environment_settings(servers(command, run_in="thread"))
    with pytest.raises(ConfigError, match="no program 'no-such-program'"):
        check_environment_settings(servers("no-such-program --stdio"))
