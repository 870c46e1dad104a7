"""Who may use a server: clients with its token. What it opens is on loopback, or in a folder of its user."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

from purerl.backends.serving.access import TOKEN
from purerl.backends.serving.process import free_port
from purerl.backends.transfer.engine import purerl_server
from purerl.backends.transfer.engine.purerl_server import Guard
from tests.forks import TORCH

SECRET = "0123456789abcdef"
ENGINE_FOLDER = Path(purerl_server.__file__).parent


def _answers(kind: str, *authorization: str, path: str = "/") -> list[dict[str, Any]]:
    """The answer of `Guard` to a connection with these headers; the guarded application answers "reached"."""
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


@pytest.mark.parametrize(("token", "is_known"), [(SECRET, True), (SECRET[:-1], False), ("", False)])
def test_token_is_in_a_header_of_its_own_beside_another_key(token: str, is_known: bool) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "reached"})

    for key in ("Bearer another key", f"Bearer {SECRET}"):
        headers = [(b"authorization", key.encode()), (b"purerl-token", token.encode())]
        asyncio.run(Guard(app, SECRET)({"type": "http", "path": "/", "headers": headers}, None, send))
        assert (sent.pop() == {"type": "reached"}) is is_known, "the header of its own decides"


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


def status_of(url: str, token: str | None) -> int:
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
                status_of(f"http://127.0.0.1:{port}/", None)
                break
            except (URLError, ConnectionError):
                assert time.monotonic() < end
                assert server.poll() is None
                time.sleep(0.1)
        try:
            for path in ("/", "/health", "/nothing", "/v1/models?x=1"):
                url = f"http://127.0.0.1:{port}{path}"
                assert {status_of(url, None) for _ in range(10)} == {status_of(url, SECRET[::-1])} == {401}
                assert {status_of(url, SECRET) for _ in range(10)} == {200}
            _check_lease(f"http://127.0.0.1:{port}")
        finally:
            server.terminate()
    assert not folder.exists()


def _check_lease(url: str) -> None:
    """Fail if not all processes of the server at `url` have the same lease."""
    body = json.dumps({"id": "a", "run": None, "name": "a run"}).encode()
    headers = {"Authorization": f"Bearer {SECRET}"}
    urlopen(Request(f"{url}/purerl/lease", data=body, headers=headers), timeout=60).close()
    for _ in range(10):
        with urlopen(Request(f"{url}/purerl/lease", headers=headers), timeout=60) as answer:
            assert json.load(answer)["name"] == "a run"
        assert status_of(f"{url}/update", SECRET) == 423
        assert status_of(f"{url}/health", SECRET) == 200


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
@pytest.mark.parametrize(
    ("host", "start"), [("127.0.0.1", subprocess.Popen), ("localhost", TORCH.Popen)], ids=["started", "forked"]
)
def test_stores_of_torch_listen_on_loopback(host: str, start: type[subprocess.Popen[str]]) -> None:
    """By default they listen on all addresses, whatever their own."""
    environment = _environment(**{TOKEN: SECRET, "GLOO_SOCKET_IFNAME": "lo"})
    command = [sys.executable, "-c", STORES, host]
    with start(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
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
    """Engines send pickles over some groups. One process is started, and the others are forked."""
    starts = [subprocess.Popen if len({*tokens}) == 2 else TORCH.Popen, TORCH.Popen]
    commands = [[sys.executable, "-c", GROUP, str(tmp_path / "store"), str(rank)] for rank in range(2)]
    processes = [
        start(
            command,
            env=_environment(**{TOKEN: token, "GLOO_SOCKET_IFNAME": "lo"}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for start, command, token in zip(starts, commands, tokens, strict=True)
    ]
    ended = [(*process.communicate(timeout=120), process.returncode) for process in processes]
    if len({*tokens}) == 1:
        assert [(output, status) for output, _, status in ended] == [("[2.0, 2.0] [0, None]\n", 0)] * 2, ended
    else:
        assert [(output, status) for output, _, status in ended] == [("", 1)] * 2
        assert "a process without the token of the server is in the group" in ended[0][1]
