"""Access to a server of environments: only clients with its token run episodes."""

from __future__ import annotations

import json
import os
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from purerl.envs.hosts import episode
from purerl.envs.remote import VARIABLE
from purerl.envs.server import Server
from purerl.errors import ConfigError, RolloutError
from purerl.system.access_tokens import given_token, loopback_token
from tests.sandbox.as_user import USER

from .hosts import failure_of, hosted, settings
from .test_remote import remote

TOKEN = "0123456789abcdef-of-the-test"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in (VARIABLE, f"{VARIABLE}_FILE"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def serving(host: str = "127.0.0.1") -> Iterator[Server]:
    with Server(settings("Obeys", run_in="thread"), (host, 0)) as server:
        yield server


def url_of(server: Server) -> str:
    return f"http://127.0.0.1:{server.address[1]}"


async def reset(host) -> None:
    async with episode(host) as opened:
        await opened.reset({}, 0)


def answer_to(server: Server, request: str) -> str:
    """The first line of what the server answers to the bytes `request`, which need not be a whole request."""
    with socket.create_connection(("127.0.0.1", server.address[1]), timeout=30) as connection:
        connection.sendall(request.encode())
        return connection.makefile("rb").readline().decode().strip()


@pytest.mark.parametrize("token", [None, TOKEN])
@pytest.mark.parametrize(
    "header",
    [
        "",
        "Authorization: Bearer \n",
        "Authorization: Bearer wrong\n",
        "Authorization: {right}\n",
        "Authorization: Bearer {right}x\n",
        "Authorization: Basic {right}\n",
        "Authorization: Bearer \u00e9\u20ac\n",
        "X-Authorization: Bearer {right}\n",
        "Cookie: Bearer {right}\n",
    ],
)
def test_request_without_the_token_is_refused_before_its_body_arrives(
    token: str | None, header: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if token:
        monkeypatch.setenv(VARIABLE, token)
    with serving() as server:
        header = header.replace("{right}", token or loopback_token(server.address[1]))
        for method, path in (
            ("POST", "/episodes"),
            ("GET", "/"),
            ("DELETE", "/episodes/a"),
            ("POST", "/episodes/a/step"),
        ):
            request = f"{method} {path} HTTP/1.1\nHost: h\n{header}Content-Length: 100000\n\n"
            assert answer_to(server, request) == "HTTP/1.1 401 Unauthorized"
        headers = {"Authorization": f"Bearer {token or loopback_token(server.address[1])}"}
        assert httpx.get(url_of(server), headers=headers).json()["episodes"] == 0


def test_token_of_a_loopback_server_is_in_a_private_file_that_its_user_reads() -> None:
    with serving() as server:
        path = server.token_file
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert path.stat().st_uid == os.getuid()
        first = loopback_token(server.address[1])
        assert len(first) == 64
        hosted(reset, remote(url_of(server)))
    assert not path.exists()
    with serving() as server:
        assert loopback_token(server.address[1]) != first


def attack(path: Path, port: int) -> str:
    """The loot of another user of this host: the token in the file `path`, and an answer of the server at `port`."""
    gained = []
    for name in (path, path.parent):
        with suppress(PermissionError):
            gained.append(name.read_text() if name == path else str([*name.iterdir()]))
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        body = json.dumps({"episode": "a", "example": {}, "seed": 0})
        connection.sendall(f"POST /episodes HTTP/1.1\nHost: h\nContent-Length: {len(body)}\n\n{body}".encode())
        gained.append(connection.recv(12).decode())
    return " ".join(gained)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_of_the_host_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:  # everybody may enter it, unlike the folders of pytest
        Path(folder).chmod(0o755)
        monkeypatch.setenv("XDG_CACHE_HOME", folder)
        with serving() as server:
            assert server.token_file.is_relative_to(folder)
            read, write = os.pipe()
            process = os.fork()
            if process == 0:
                os.setgroups([])
                os.setgid(USER)
                os.setuid(USER)
                os.write(write, attack(server.token_file, server.address[1]).encode())
                os._exit(0)
            os.close(write)
            with os.fdopen(read) as answer:
                assert answer.read() == "HTTP/1.1 401"
            assert os.waitpid(process, 0)[1] == 0
            hosted(reset, remote(url_of(server)))


def test_file_of_a_loopback_token_that_others_can_read_is_not_used() -> None:
    with serving() as server:
        server.token_file.chmod(0o644)
        assert loopback_token(server.address[1]) is None
        with pytest.raises(RolloutError, match="refuses the run\n  got:  no token"):
            hosted(reset, remote(url_of(server)))


@pytest.mark.parametrize("host", ["0.0.0.0", "", "127.evil.example"])
def test_server_on_other_addresses_needs_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match=f"got:  no token\n  need: a token.*\n  do:   export {VARIABLE}"):
        Server(settings("Obeys"), (host, 0))


def test_token_comes_from_a_variable_or_a_private_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n", encoding="utf-8")
    path.chmod(0o600)
    monkeypatch.setenv(f"{VARIABLE}_FILE", str(path))
    with serving("0.0.0.0") as server:
        assert server.token_file is None
        hosted(reset, remote(url_of(server)))
        monkeypatch.delenv(f"{VARIABLE}_FILE")
        monkeypatch.setenv(VARIABLE, TOKEN)
        hosted(reset, remote(url_of(server)))
        monkeypatch.setenv(VARIABLE, f"{TOKEN}-wrong")
        with pytest.raises(RolloutError, match="refuses the run\n  got:  a token that is not that of the server"):
            hosted(reset, remote(url_of(server)))
        monkeypatch.delenv(VARIABLE)
        with pytest.raises(RolloutError, match="refuses the run\n  got:  no token"):
            hosted(reset, remote(url_of(server)))


def make(path: Path, kind: str) -> None:
    """Create a file with a token at `path`, which cannot be used because of its `kind`."""
    path.write_text(TOKEN if kind != "short" else "short", encoding="utf-8")
    path.chmod({"group": 0o640, "others": 0o604, "writable": 0o622}.get(kind, 0o600))
    if kind == "link":
        path.rename(path.with_name("target"))
        path.symlink_to("target")
    if kind == "second name":
        path.with_name("other").hardlink_to(path)
    if kind in ("missing", "directory", "pipe"):
        path.unlink()
    if kind == "directory":
        path.mkdir(mode=0o700)
    if kind == "pipe":
        os.mkfifo(path, 0o600)


@pytest.mark.parametrize(
    "kind", ["group", "others", "writable", "link", "second name", "missing", "directory", "pipe", "short"]
)
def test_file_that_is_not_private_is_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "token", kind)
    monkeypatch.setenv(f"{VARIABLE}_FILE", str(tmp_path / "token"))
    with pytest.raises(ConfigError, match=f"{VARIABLE}_FILE") as caught:
        given_token(VARIABLE)
    assert "short" not in str(caught.value).partition("need")[0]
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("token", ["", "short", "has a space in it, too", "line\nbreak-0123456789", "\u00e9" * 20])
def test_text_that_is_no_token_is_refused_and_not_shown(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, token)
    with pytest.raises(ConfigError, match="need: a token of at least 16 visible") as caught:
        given_token(VARIABLE)
    assert not token or token not in str(caught.value)
    monkeypatch.setenv(f"{VARIABLE}_FILE", "file")
    with pytest.raises(ConfigError, match="need: one of them"):
        given_token(VARIABLE)


@contextmanager
def answering(status: int, text: str, location: str = "") -> Iterator[tuple[str, list[str | None]]]:
    """A server with one answer, and the values of the header Authorization that it has got."""
    tokens: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            tokens.append(self.headers["Authorization"])
            self.rfile.read(int(self.headers["Content-Length"]))
            body = text.replace("{token}", str(tokens[-1])).encode()
            self.send_response(status)
            self.send_header("Location", location)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{http.server_address[1]}", tokens
        http.shutdown()


async def failure_of_reset(host):
    async with episode(host) as opened:
        return await failure_of(opened.reset({}, 0))


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_token_does_not_follow_a_redirect(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)
    other = answering(201, json.dumps({"observation": {}}))
    with other as (target, tokens_there), answering(status, "moved", f"{target}/episodes") as (url, tokens):
        failure = hosted(failure_of_reset, remote(url))
    assert f"status {status}" in failure.traceback
    assert (tokens, tokens_there) == ([f"Bearer {TOKEN}"], [])


def test_token_is_not_sent_to_a_proxy_for_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)
    with answering(201, "{}") as (proxy, tokens), answering(201, json.dumps({"observation": {}})) as (url, _):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy)
        hosted(reset, remote(url))
    assert tokens == []


def test_token_that_a_server_repeats_is_not_in_the_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)
    with answering(400, "you sent {token}") as (url, _):
        failure = hosted(failure_of_reset, remote(url))
    assert "you sent Bearer [token]" in failure.traceback
    assert TOKEN not in failure.traceback
