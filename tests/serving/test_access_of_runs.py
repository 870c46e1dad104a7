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
from tests.serving.toys import WEIGHTS, Toy, ToyModel, engines, toys

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
        threading.Thread(target=server.serve_forever, daemon=True).start()
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
