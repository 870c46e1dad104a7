"""Remote environments: a real server process, which is killed and slowed, and servers that answer wrongly."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from purerl.envs.hosts import episode
from purerl.envs.server import Server
from purerl.envs.settings import EnvironmentSettings
from purerl.system.access_tokens import loopback_token
from tests.forks import PROGRAMS
from tests.rewards.processes import wait_until

from .hosts import MODULE, ROOT, check_end, failure_of, hosted, play, say, settings

pytestmark = pytest.mark.slow

SCRIPT = """
import sys
from purerl.envs.server import Server
from purerl.envs.settings import EnvironmentSettings

settings = EnvironmentSettings(factory="tests.envs.environments:" + sys.argv[1], num_workers=1, timeout=30.0)
with Server(settings, ("127.0.0.1", int(sys.argv[2]))) as server:
    print(server.address[1], flush=True)
    server.wait()
"""


@contextmanager
def server_process(
    name: str, port: int = 0, start: type[subprocess.Popen[str]] = PROGRAMS.Popen
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, *sys.path)))}
    command = [sys.executable, "-c", SCRIPT, name, str(port)]
    with start(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


def bearer(url: str) -> dict[str, str]:
    """The header with the token that the server at `url` has written."""
    return {"Authorization": f"Bearer {loopback_token(int(url.rpartition(':')[2]))}"}


def remote(url: str, **more) -> EnvironmentSettings:
    return EnvironmentSettings(url=url, **({"timeout": 30.0} | more))


def keys(observations):
    return [(o.reward, o.done, o.state, [*o.messages]) for o in observations]


def test_episodes_on_a_server_are_the_same_as_here() -> None:
    async def play_many(host):
        return [keys(one) for one in await asyncio.gather(*(play(host, seed) for seed in range(100)))]

    with server_process("Guess") as (_, url):
        there = hosted(play_many, remote(url, has_states=True))
        assert httpx.get(url, headers=bearer(url)).json() == {"environment": f"{MODULE}:Guess", "episodes": 0}
    assert there == hosted(play_many, settings("Guess", has_states=True))


def test_end_by_a_limit_on_a_server() -> None:
    with server_process("Ends", start=subprocess.Popen) as (_, url):
        hosted(check_end, remote(url, has_states=True))
        with httpx.Client(base_url=url, headers=bearer(url)) as client:
            client.post("/episodes", json={"episode": "a", "example": {}, "seed": 0})
            end = {"turn": 0, "reason": "length", "text": "ab"}
            first = client.post("/episodes/a/end", json=end)
            assert first.json()["observation"]["reward"] == 2.0
            assert client.post("/episodes/a/end", json=end).json() == first.json()
            assert client.post("/episodes/a/end", json=end | {"turn": 2}).status_code == 409
            assert client.post("/episodes/a/end", json=end | {"reason": "bored"}).status_code == 400


def test_failures_of_the_environment_arrive_with_their_traceback(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def main(host):
        async with episode(host) as opened:
            await opened.reset({"log": str(log)}, 0)
            failure = await failure_of(opened.step("raise here", ()))
            assert failure.kind == "raised"
            assert failure.function == f"{MODULE}:Obeys"
            assert "do_raise" in failure.traceback
        assert log.read_text() == "closed\n"
        async with episode(host) as opened:
            await opened.reset({}, 0)
            assert (await failure_of(opened.step("crash", ()))).kind == "died"

    with server_process("Obeys") as (_, url):
        hosted(main, remote(url))


def test_server_that_is_killed_fails_its_episodes_and_the_next_one_takes_over() -> None:
    async def main(host):
        async with episode(host) as opened:
            await opened.reset({}, 0)
            process.kill()
            process.wait()
            failure = await failure_of(opened.step("say x", ()))
            assert failure.kind == "died"
            assert "failed 3 times; ConnectError" in failure.traceback
        with server_process("Obeys", int(url.rpartition(":")[2])):
            async with episode(host) as opened:
                await opened.reset({}, 0)
                assert await say(opened, "say x") == "x"

    with server_process("Obeys") as (process, url):
        hosted(main, remote(url))


def is_stopped(pid: int) -> bool:
    """Whether all threads of the process are stopped: one gets the signal first, while the others run."""
    try:
        stats = [path.read_text(encoding="utf-8") for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):  # a thread has ended
        return False
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def test_server_that_does_not_answer_is_a_timeout() -> None:
    async def main(host):
        async with episode(host) as opened:
            await opened.reset({}, 0)
            process.send_signal(signal.SIGSTOP)
            assert wait_until(lambda: is_stopped(process.pid))
            start = time.monotonic()
            assert (await failure_of(opened.step("say x", ()))).kind == "timed out"
            assert time.monotonic() - start < 20

    with server_process("Obeys") as (process, url):
        hosted(main, remote(url, timeout=2.0))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    chosen = EnvironmentSettings(factory=f"{MODULE}:Obeys", num_workers=1, timeout=30.0)
    with Server(chosen, ("127.0.0.1", 0), max_idle=1.0) as running:
        yield "http://{}:{}".format(*running.address)


def test_repeated_requests_have_the_same_answer(server: str) -> None:
    with httpx.Client(base_url=server, headers=bearer(server)) as client:
        start = {"episode": "a", "example": {}, "seed": 0}
        assert client.post("/episodes", json=start).json() == client.post("/episodes", json=start).json()
        step = {"turn": 0, "text": "random", "calls": []}
        first = client.post("/episodes/a/step", json=step)
        assert first.status_code == 200
        assert client.post("/episodes/a/step", json=step).json() == first.json()
        assert client.post("/episodes/a/step", json=step | {"turn": 1}).json() != first.json()
        assert client.post("/episodes/a/step", json=step).status_code == 409
        assert client.post("/episodes/a/step", json=step | {"turn": 5}).status_code == 409
        assert client.delete("/episodes/a").status_code == 204
        assert client.delete("/episodes/a").status_code == 204


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/episodes", "{", 400, "not JSON"),
        ("/episodes", "[]", 400, "not an object"),
        ("/episodes", "{}", 400, "'episode'"),
        ("/episodes/none/step", '{"turn": 0, "text": "", "calls": []}', 404, "no such episode"),
        ("/episodes/none/step", '{"turn": 0, "text": "", "calls": [{"tool": 1}]}', 400, "name, arguments"),
        ("/other", "{}", 404, "no such path"),
    ],
)
def test_invalid_requests_are_refused(server: str, path: str, body: str, status: int, words: str) -> None:
    response = httpx.post(server + path, content=body, headers=bearer(server))
    assert response.status_code == status
    assert words in response.json()["error"]


def test_episode_that_nobody_uses_is_closed(server: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    start = {"episode": "idle", "example": {"log": str(log)}, "seed": 0}
    httpx.post(f"{server}/episodes", json=start, headers=bearer(server))
    end = time.monotonic() + 30
    while not log.exists() and time.monotonic() < end:
        time.sleep(0.1)
    assert log.read_text() == "closed\n"


# --- wrong servers -----------------------------------------------------------------------------------------------


@contextmanager
def answering(*responses: tuple[int, object]) -> Iterator[str]:
    """A server that gives these answers, one after the other; None closes the connection."""
    remaining = list(responses)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            status, body = remaining.pop(0)
            if not status:
                self.close_connection = True
                return
            data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_DELETE(self):
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments): ...

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}"
    finally:
        http.shutdown()
        http.server_close()


@pytest.mark.parametrize(
    ("response", "words"),
    [
        ((200, "<html>"), "status 200, an answer that is no JSON (no type): <html>"),
        ((200, {}), "need an object"),
        ((200, {"observation": {"rewards": 1}}), "need an object with some of the keys"),
        ((200, {"observation": {"reward": "high"}}), "reward is 'high'"),
        ((200, {"observation": {"messages": [{"role": "boss", "content": ""}]}}), "need a role"),
        ((200, {"observation": {}, "tools": [{"name": "add"}]}), "a tool is"),
        ((404, {"error": "no"}), "status 404"),
        ((422, {"failure": {"name": "x"}}), "the failure"),
    ],
)
def test_wrong_answer_is_a_failure(response: tuple[int, object], words: str) -> None:
    async def main(host):
        async with episode(host) as opened:
            return await failure_of(opened.reset({}, 0))

    with answering(response) as url:
        failure = hosted(main, remote(url))
    assert failure.kind == "returned an invalid value"
    assert words in failure.traceback


@pytest.mark.parametrize(
    ("response", "is_failure"),
    [
        ((404, {"error": "no such path: POST /episodes/x/end"}), False),
        ((404, "<html>not found"), False),
        ((405, ""), False),
        ((404, {"error": "no such episode: x"}), True),
        ((500, {"error": "broken"}), True),
    ],
)
def test_server_without_the_path_end_has_environments_without_this_method(
    response: tuple[int, object], *, is_failure: bool
) -> None:
    async def main(host):
        async with episode(host) as opened:
            await opened.reset({}, 0)
            return await (failure_of(opened.end("turns", "")) if is_failure else opened.end("turns", ""))

    with answering((201, {"observation": {}}), response) as url:
        assert (hosted(main, remote(url)) is not None) == is_failure


def test_broken_connections_and_temporary_errors_are_tried_again() -> None:
    async def main(host):
        async with episode(host) as opened:
            return await opened.reset({}, 0)

    with answering((0, None), (503, "busy"), (201, {"observation": {"state": "start"}})) as url:
        assert hosted(main, remote(url)).state == "start"
