"""Servers that a run starts or is given: their token, their folder, and what their settings may contain."""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from purerl.backends.serving import settings as serving
from purerl.backends.serving.access import TOKEN, private_environment, token_of_run
from purerl.backends.serving.http import Http, RefusedError, UnknownTokenError, UnreachableError
from purerl.backends.serving.settings import ServerSettings
from purerl.backends.sglang import generator as sglang
from purerl.backends.transfer.engine import purerl_server
from purerl.backends.vllm import generator as vllm
from purerl.errors import ConfigError, EngineError
from purerl.settings import Model
from tests.backends.tiny import write_model
from tests.serving.test_access import status_of
from tests.serving.toys import WEIGHTS, Toy, ToyModel, completions, engines, requests, toys

SECRET = "0123456789abcdef"
ENGINE_FOLDER = Path(purerl_server.__file__).parent


def test_servers_of_a_run_get_its_token_and_a_private_folder(tmp_path: Path) -> None:
    """The token is in no file, and on no command line. The folder is removed at the end."""
    with toys(tmp_path, are_started=True) as generator:
        [pid] = engines()
        variables = dict(pair.split("=", 1) for pair in Path(f"/proc/{pid}/environ").read_text().split("\0") if pair)
        folder = Path(variables["TMPDIR"])
        assert variables[TOKEN] == token_of_run()
        assert folder.stat().st_mode & 0o777 == 0o700
        assert folder.name.startswith("purerl-server-")
        assert token_of_run().encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        url = generator.servers[0].url
        assert (status_of(url, None), status_of(url, SECRET), status_of(url, token_of_run())) == (401, 401, 200)
    assert not folder.exists()
    texts = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert texts
    assert not any(token_of_run() in text for text in texts)


def test_server_that_answers_strangers_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(EngineError, match=r"is open\n  got:  an answer without a token"),
        toys(tmp_path, Toy(("--open",))),
    ):
        pass
    assert engines() == []


@pytest.mark.parametrize("token", [None, "another-token-of-16"])
def test_given_server_with_another_token_is_an_error_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if token is None:
        monkeypatch.delenv(TOKEN, raising=False)
    else:
        monkeypatch.setenv(TOKEN, token)
    with toys(tmp_path) as owner:
        urls = (owner.servers[0].url,)
        with pytest.raises(EngineError, match="does not know the token") as caught:
            toys(tmp_path, urls=urls, model=ToyModel(WEIGHTS), start_timeout=600.0).__enter__()
    assert f"set {TOKEN} or {TOKEN}_FILE" in str(caught.value)
    assert (token or SECRET) not in str(caught.value)


def test_token_of_a_given_server_is_checked_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "short")
    with pytest.raises(ConfigError, match="at least 16 visible ASCII characters"):
        serving.check_engine(ServerSettings(urls=("http://host:1",)), "vllm")


class _Echo(BaseHTTPRequestHandler):
    """Redirects to `target`, or shows the headers that it has got."""

    target: str | None = None
    seen: list[str | None]

    def do_GET(self) -> None:
        self.seen.append(self.headers["Authorization"])
        text = str(self.headers).encode()
        self.send_response(307 if self.target else int(self.path[1:]))
        if self.target:
            self.send_header("Location", self.target)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *arguments: Any) -> None:
        """Nothing is logged."""


@contextmanager
def _echo(target: str | None = None) -> Iterator[tuple[str, list[str | None]]]:
    """The address of a server, and the headers that it has got."""
    handler = type("Handler", (_Echo,), {"target": target, "seen": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", handler.seen
        server.shutdown()


async def _get(url: str, path: str) -> Any:
    http = Http(url, token=SECRET, connections=1)
    try:
        return await http.get(path, timeout=30.0)
    finally:
        await http.close()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, UnknownTokenError),
        (403, UnknownTokenError),
        (404, RefusedError),
        (422, RefusedError),
        (500, UnreachableError),
    ],
)
def test_errors_do_not_show_the_token(status: int, error: type[Exception]) -> None:
    with _echo() as (url, seen), pytest.raises(error) as caught:
        asyncio.run(_get(url, f"/{status}"))
    assert seen == [f"Bearer {SECRET}"]
    assert SECRET not in repr(caught.value)
    assert "***" in str(caught.value)


def test_redirects_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other server would get the token. So would a proxy of the environment."""
    with _echo() as (other, others), _echo(f"{other}/200") as (url, seen):
        monkeypatch.setenv("http_proxy", other)
        with pytest.raises(RefusedError, match="307"):
            asyncio.run(_get(url, "/200"))
    assert seen == [f"Bearer {SECRET}"]
    assert others == []


def test_folder_has_a_short_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of Unix sockets have at most 107 bytes."""
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    for environment in ({}, {"TMPDIR": str(long)}):
        with private_environment(environment, SECRET) as private, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{private['TMPDIR']}/{'u' * 36}")
    with private_environment({"TMPDIR": "/dev/shm"}, SECRET) as private:
        assert Path(private["TMPDIR"]).parent == Path("/dev/shm")
        assert private[TOKEN] == SECRET


@pytest.mark.parametrize("engine", [vllm, sglang])
def test_processes_of_engines_use_loopback_unless_the_settings_say_otherwise(engine: Any, tmp_path: Path) -> None:
    model = Model(write_model(tmp_path))

    def variables(**changes: Any) -> Any:
        config = engine.Config(server=ServerSettings(**changes))
        return engine.command(config, model=model, host="127.0.0.1", port=1).environment

    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    assert [variables()[name] for name in names] == ["lo", "lo"] if sys.platform == "linux" else ["lo0", "lo0"]
    assert variables(environment={"GLOO_SOCKET_IFNAME": "eth7"})["GLOO_SOCKET_IFNAME"] == "eth7"
    assert "NCCL_SOCKET_IFNAME" not in variables(weight_transfer="nccl")


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "OPENAI_API_KEY", "AWS_SECRET", "DB_PASSWORD", "MY_CREDENTIALS", "VLLM_API_KEY", "anything_key"],
)
def test_credentials_for_servers_come_from_the_environment_of_the_run(name: str) -> None:
    with pytest.raises(ConfigError, match=f"environment.{name}") as caught:
        ServerSettings(environment={name: "hunter2"})
    assert "set the variable in the environment of the run: servers inherit it" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_other_variables_of_servers_are_settings() -> None:
    names = (
        "TOKENIZERS_PARALLELISM",
        "SGLANG_SYNC_TOKEN_IDS_ACROSS_TP",
        "VLLM_CPU_KVCACHE_SPACE",
        "KEYRING",
        "HF_HOME",
    )
    assert set(ServerSettings(environment=dict.fromkeys(names, "1")).environment) == set(names)


@pytest.mark.parametrize("engine", [vllm, sglang])
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("api_key", "sesame", "leave it out: servers have a token of the run"),
        ("api-key", "sesame", "leave it out: servers have a token of the run"),
        ("admin_api_key", "sesame", "leave it out: servers have a token of the run"),
        ("grpc", True, "another server of the engine"),
        ("grpc_port", 5000, "another server of the engine"),
        ("enable-http2", True, "another server of the engine"),
    ],
)
def test_arguments_that_would_open_the_server_are_refused(engine: Any, name: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        engine.Config(server=ServerSettings(arguments={name: value}))
    assert f"arguments.{name}" in str(caught.value)
    assert "sesame" not in str(caught.value)


# --- servers behind a proxy, or with a key of their own ------------------------------------------------------------

KEY = "sk-short"  # a key may be shorter than a token


class _Proxy(BaseHTTPRequestHandler):
    """Asks for the key, and passes requests to the server at `target`, without the key."""

    protocol_version = "HTTP/1.1"
    target: str
    seen: list[tuple[str, str, str | None]]

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.seen.append((self.command, self.path, self.headers["Authorization"]))
        status, text = 401, f"unknown: {self.headers['Authorization']}".encode()
        if self.headers["Authorization"] == f"Bearer {KEY}":
            headers = {name: value for name, value in self.headers.items() if name.lower().startswith("purerl-")}
            request = Request(self.target + self.path, method=self.command, headers=headers, data=body or None)
            try:
                with urlopen(request, timeout=60) as answer:
                    status, text = answer.status, answer.read()
            except HTTPError as error:
                status, text = error.code, error.read()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self) -> None:
        self._pass_on()

    do_POST, do_DELETE = do_GET, do_GET  # noqa: N815 - the names that the base class looks for

    def log_message(self, *arguments: Any) -> None:
        """Nothing is logged."""


@contextmanager
def _proxy(target: str) -> Iterator[tuple[str, list[tuple[str, str, str | None]]]]:
    """The address of a proxy in front of `target`, and the method, the path and the key of each request."""
    handler = type("Handler", (_Proxy,), {"target": target, "seen": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", handler.seen
        server.shutdown()


def test_each_call_has_the_key_of_a_proxy_and_the_token_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(TOKEN, token_of_run())
    monkeypatch.setenv("GATEWAY", KEY)
    with toys(tmp_path) as owner, _proxy(owner.servers[0].url) as (url, seen):
        settings: dict[str, Any] = {"urls": (url,), "model": ToyModel(WEIGHTS), "api_key_variable": "GATEWAY"}
        with toys(tmp_path, **settings) as generator:
            generator.load_weights(WEIGHTS, version=1)
            generator.submit(requests(3))
            assert len(completions(generator, 3)) == 3
            generator.submit(requests(1, tokens=900))
            generator.cancel(["0"])
            completions(generator, 1)
    paths = {(method, path) for method, path, _ in seen}
    assert paths >= {("GET", "/health"), ("POST", "/purerl/lease"), ("POST", "/load"), ("POST", "/generate")}
    assert ("DELETE", "/purerl/lease") in paths
    assert {key for _, _, key in seen} == {f"Bearer {KEY}"}
    texts = [*caplog.messages, *(path.read_text() for path in tmp_path.rglob("*") if path.is_file())]
    assert not any(KEY in text or token_of_run() in text for text in texts)


@pytest.mark.parametrize("key", [None, "another-key"])
def test_wrong_key_is_an_error_that_does_not_show_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    monkeypatch.setenv(TOKEN, token_of_run())
    monkeypatch.setenv("GATEWAY", key or "")
    variable = {} if key is None else {"api_key_variable": "GATEWAY"}
    with toys(tmp_path) as owner, _proxy(owner.servers[0].url) as (url, _), pytest.raises(EngineError) as caught:
        toys(tmp_path, urls=(url,), model=ToyModel(WEIGHTS), **variable).__enter__()
    assert f"does not know the {'key' if key else 'token'}" in str(caught.value)
    assert "api_key_variable" in str(caught.value)
    assert (key or token_of_run()) not in str(caught.value)
    assert token_of_run() not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("UNSET", None, "of no environment variable"),
        ("EMPTY", "", "0 characters, which are not shown here"),
        ("LINES", "a key\nX-Other: 1", "16 characters, which are not shown here"),
        ("SPACES", "a key", "5 characters"),
        ("UMLAUT", "schlüssel", "9 characters"),
        ("sk_live_0123456789abcdef", None, "a name, which is not shown here"),
    ],
)
def test_key_is_checked_before_the_run_and_never_shown(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str | None, words: str
) -> None:
    monkeypatch.delenv(name, raising=False)
    if value is not None:
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="server.api_key_variable") as caught:
        serving.check_engine(ServerSettings(urls=("http://host:1",), api_key_variable=name), "vllm")
    assert words in str(caught.value)
    assert "0123456789abcdef" not in str(caught.value)
    assert not value or value not in str(caught.value)


@pytest.mark.parametrize("value", ["sk-0123456789abcdef", "a key", "", "$GATEWAY"])
def test_key_itself_in_place_of_its_variable_is_refused_and_not_shown(value: str) -> None:
    with pytest.raises(ConfigError, match="api_key_variable") as caught:
        ServerSettings(urls=("http://host:1",), api_key_variable=value)
    assert not value or value not in str(caught.value)


def test_key_has_no_effect_on_servers_that_a_run_starts() -> None:
    with pytest.raises(ConfigError, match="api_key_variable has no effect") as caught:
        ServerSettings(api_key_variable="sk_0123456789abcdef")
    assert "0123456789abcdef" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:hunter2@host:8000",
        "http://hunter2@host:8000",
        "https://host/v1?api_key=hunter2",
        "https://host/v1?hunter2",
        "https://host/v1?k=hunter2&x=1",
        "https://host/#hunter2",
        "https://:hunter2@host",
        "https://user:hunter2@[::1]:80",
        "hunter2@host:8000",
    ],
)
def test_credentials_in_urls_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="urls") as caught:
        ServerSettings(urls=("http://host:1", url))
    assert "hunter2" not in str(caught.value)
