"""Who may use a server: clients with its token. What it opens is on loopback, or in a folder of its user."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

from purerl.backends.serving import settings as serving
from purerl.backends.serving.access import TOKEN, private_environment, token_of_run
from purerl.backends.serving.http import Http, RefusedError, UnknownTokenError, UnreachableError
from purerl.backends.serving.process import free_port
from purerl.backends.serving.settings import ServerSettings
from purerl.backends.sglang import generator as sglang
from purerl.backends.transfer.engine import purerl_server
from purerl.backends.transfer.engine.purerl_server import Guard
from purerl.backends.vllm import generator as vllm
from purerl.errors import ConfigError, EngineError
from purerl.settings import Model
from tests.backends.tiny import write_model
from tests.serving.toys import WEIGHTS, Toy, ToyModel, engines, toys

SECRET = "0123456789abcdef"
ENGINE_FOLDER = Path(purerl_server.__file__).parent


def _answers(kind: str, *authorization: str, path: str = "/") -> list[dict[str, Any]]:
    """What `Guard` answers to a connection with these headers; the guarded application answers "reached"."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "reached"})

    headers = [(b"authorization", value.encode()) for value in authorization]
    asyncio.run(Guard(app, SECRET)({"type": kind, "path": path, "headers": headers}, None, send))
    return sent


@pytest.mark.parametrize(
    "authorization",
    [
        (),
        ("",),
        ("Bearer",),
        ("Bearer ",),
        (f"Basic {SECRET}",),
        (SECRET,),
        (f"Bearer {SECRET}x",),
        (f"Bearer {SECRET[:-1]}",),
        (f"Bearer {SECRET.upper()}",),
        (f"Bearer x{SECRET}",),
        (f"Bearer {SECRET}", f"Bearer {SECRET}x"),
        ("Bearer ä" + SECRET,),
    ],
)
@pytest.mark.parametrize("path", ["/", "/v1/models", "/health", "//x", "/collective_rpc"])
def test_clients_without_the_token_reach_nothing(authorization: tuple[str, ...], path: str) -> None:
    start, body = _answers("http", *authorization, path=path)
    assert (start["status"], body["type"]) == (401, "http.response.body")
    assert json.loads(body["body"])["error"]
    assert int(dict(start["headers"])[b"content-length"]) == len(body["body"])
    assert _answers("websocket", *authorization, path=path) == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize("authorization", [f"Bearer {SECRET}", f"bearer {SECRET}", f"BEARER  {SECRET} "])
def test_clients_with_the_token_reach_the_server(authorization: str) -> None:
    for kind in ("http", "websocket"):
        assert _answers(kind, authorization) == [{"type": "reached"}]


def test_start_of_the_server_needs_no_token_and_other_connections_are_refused() -> None:
    assert _answers("lifespan") == [{"type": "reached"}]
    with pytest.raises(PermissionError):
        _answers("quic")


# --- the program ---------------------------------------------------------------------------------------------------


def _environment(**variables: str) -> dict[str, str]:
    path = os.pathsep.join([str(ENGINE_FOLDER), str(Path(__file__).parents[2])])
    clean = {name: value for name, value in os.environ.items() if name != TOKEN}
    return {**clean, "PYTHONPATH": path, **variables}


@pytest.mark.parametrize("token", [None, "", "short", "with spaces in the token", "with a line\nin the token"])
def test_program_without_a_token_starts_nothing(token: str | None) -> None:
    variables = {} if token is None else {TOKEN: token}
    command = [sys.executable, "-m", "purerl_server", "http.server", "--help"]
    done = subprocess.run(command, check=False, env=_environment(**variables), capture_output=True, text=True)
    assert done.returncode == 1
    assert f"{TOKEN} must contain a token" in done.stderr
    assert done.stdout == ""


def _status(url: str, token: str | None) -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        return urlopen(Request(url, headers=headers), timeout=60).status
    except HTTPError as error:
        return error.code


@pytest.mark.slow
def test_each_process_of_a_server_checks_the_token(tmp_path: Path) -> None:
    """Two workers, which multiprocessing starts. A temporary folder of purerl that nobody has is removed at the end."""
    pytest.importorskip("uvicorn", reason="engines have it")
    port = free_port()
    folder = tmp_path / "purerl-server"
    folder.mkdir()
    (folder / ".purerl-lock").touch()
    command = [sys.executable, "-m", "purerl_server", "tests.serving.small_server", str(port), "2"]
    with subprocess.Popen(command, env=_environment(**{TOKEN: SECRET, "TMPDIR": str(folder)})) as server:
        end = time.monotonic() + 120
        while True:
            try:
                _status(f"http://127.0.0.1:{port}/", None)
                break
            except (URLError, ConnectionError):
                assert time.monotonic() < end
                assert server.poll() is None
                time.sleep(0.1)
        try:
            for path in ("/", "/health", "/nothing", "/v1/models?x=1"):
                url = f"http://127.0.0.1:{port}{path}"
                assert {_status(url, None) for _ in range(10)} == {_status(url, SECRET[::-1])} == {401}
                assert {_status(url, SECRET) for _ in range(10)} == {200}
        finally:
            server.terminate()
    assert not folder.exists()


def _listening(pid: int | str) -> set[str]:
    """The addresses, in hexadecimal, on which the process listens."""
    links = (str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink())
    sockets = {link[8:-1] for link in links if link.startswith("socket:")}
    lines = [line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()]
    return {line[1].partition(":")[0] for line in lines if line[3] == "0A" and line[9] in sockets}


STORES = """
import sys, purerl_server
purerl_server.protect()
from datetime import timedelta
from torch import distributed
from torch.distributed import TCPStore
host = sys.argv[1]
stores = [TCPStore(host, 0, 1, True), TCPStore(host, 0, is_master=True, wait_for_workers=False, multi_tenant=True)]
again = TCPStore(host, stores[0].port, None, False, timedelta(seconds=30), False)
stores[0].set("key", "value")
assert again.get("key") == b"value"
with __import__("socket").socket() as free:
    free.bind((host, 0))
    port = free.getsockname()[1]
distributed.init_process_group("gloo", init_method=f"tcp://{host}:{port}", rank=0, world_size=1)
distributed.barrier()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads /proc")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_stores_of_torch_listen_on_loopback(host: str) -> None:
    """By default they listen on all addresses, whatever their own."""
    environment = _environment(**{TOKEN: SECRET, "GLOO_SOCKET_IFNAME": "lo"})
    command = [sys.executable, "-c", STORES, host]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        found = _listening(process.pid)
        process.stdin.close()
    assert found == {"0100007F"}


GROUP = """
import sys, purerl_server
purerl_server.protect()
import torch
from datetime import timedelta
from torch import distributed
store, rank = distributed.FileStore(sys.argv[1], 2), int(sys.argv[2])
distributed.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
part = distributed.new_group([0, 1], backend="gloo")
total = torch.ones(2)
distributed.all_reduce(total, group=part)
objects = [rank, None] if rank == 0 else [None, None]
distributed.broadcast_object_list(objects, src=0)
print(total.tolist(), objects, flush=True)
"""


@pytest.mark.parametrize("tokens", [(SECRET, SECRET), (SECRET, SECRET[::-1])], ids=["the same", "a stranger"])
def test_members_of_groups_of_gloo_prove_that_they_have_the_token(tokens: tuple[str, str], tmp_path: Path) -> None:
    """Engines send pickles over some groups."""
    commands = [[sys.executable, "-c", GROUP, str(tmp_path / "store"), str(rank)] for rank in range(2)]
    processes = [
        subprocess.Popen(
            command,
            env=_environment(**{TOKEN: token, "GLOO_SOCKET_IFNAME": "lo"}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command, token in zip(commands, tokens, strict=True)
    ]
    ended = [(*process.communicate(timeout=120), process.returncode) for process in processes]
    if len({*tokens}) == 1:
        assert [(output, status) for output, _, status in ended] == [("[2.0, 2.0] [0, None]\n", 0)] * 2, ended
    else:
        assert [(output, status) for output, _, status in ended] == [("", 1)] * 2
        assert "a process without the token of the server is in the group" in ended[0][1]


# --- what a run does -----------------------------------------------------------------------------------------------


def test_servers_of_a_run_get_its_token_and_a_private_folder(tmp_path: Path) -> None:
    """The token is in no file, and on no command line. The folder is removed at the end."""
    with toys(tmp_path) as generator:
        [pid] = engines()
        variables = dict(pair.split("=", 1) for pair in Path(f"/proc/{pid}/environ").read_text().split("\0") if pair)
        folder = Path(variables["TMPDIR"])
        assert variables[TOKEN] == token_of_run()
        assert folder.stat().st_mode & 0o777 == 0o700
        assert folder.name.startswith("purerl-server-")
        assert token_of_run().encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        url = generator.servers[0].url
        assert (_status(url, None), _status(url, SECRET), _status(url, token_of_run())) == (401, 401, 200)
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
