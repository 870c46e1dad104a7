"""Access to a real engine: no route without the token, no port beyond loopback, no Unix socket of another user."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from purerl.backends.serving.access import token_of_run
from purerl.backends.weights import TensorWeights
from purerl.protocols import Request as Prompt
from purerl.protocols import Sampling, generate
from purerl.settings import Model
from tests.backends.generators import weights_in_files
from tests.engines.conftest import KIND, build, processes
from tests.security.surface import Listener, surface_of

HARMLESS = {"vllm": ("/health", "/version", "/v1/models"), "sglang": ("/health", "/server_info", "/v1/models")}
METHODS = ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD")
OTHER_PATHS = (
    "/",
    "/nothing",
    "/openapi.json",
    "/docs",
    "/metrics",
    "/metrics/",
    "//health",
    "/v1/../health",
    "/health/",
)

NOBODY = """
import os, socket, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
for path in sys.argv[1:]:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect("\\0" + path[1:] if path.startswith("@") else path)
        except OSError:
            continue
        print(path)
"""
"""Prints those Unix sockets to which user 65534 can connect."""


def _status(url: str, path: str, method: str = "GET", authorization: str | None = None) -> int:
    headers = {} if authorization is None else {"Authorization": authorization}
    try:
        with urlopen(Request(url + path, method=method, headers=headers), timeout=60) as answer:
            return answer.status
    except HTTPError as error:
        return error.code


def _paths(url: str) -> Iterator[tuple[str, str]]:
    """The methods and paths that the server says it has, and some others."""
    import json

    token = f"Bearer {token_of_run()}"
    with urlopen(Request(f"{url}/openapi.json", headers={"Authorization": token}), timeout=60) as answer:
        paths = json.load(answer)["paths"]
    assert len(paths) > 20
    yield from ((method, path.replace("{", "").replace("}", "")) for path in paths for method in METHODS)
    yield from ((method, path) for path in OTHER_PATHS for method in METHODS)


def test_every_route_needs_the_token(url: str) -> None:
    strangers = (None, "Bearer 0123456789abcdef", f"Basic {token_of_run()}")
    for method, path in _paths(url):
        assert {_status(url, path, method, authorization) for authorization in strangers} == {401}, (method, path)
    for path in HARMLESS[KIND]:
        assert _status(url, path, authorization=f"Bearer {token_of_run()}") == 200, path


def test_websockets_need_the_token(url: str) -> None:
    address = urlsplit(url)
    lines = [
        "GET /v1/realtime HTTP/1.1", f"Host: {address.netloc}", "Connection: Upgrade", "Upgrade: websocket",
        "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==", "", "",
    ]  # fmt: skip
    with socket.create_connection((address.hostname, address.port), timeout=60) as client:
        client.sendall("\r\n".join(lines).encode())
        assert client.recv(4096).split()[1] in (b"401", b"403")


def _listeners(folder: Path) -> list[Listener]:
    return sorted(surface_of(processes(folder), ()).listeners)


def _check(folder: Path) -> None:
    """Fail if a process of the servers in `folder` listens where others can reach it, or shows the token."""
    listeners = _listeners(folder)
    assert {each.kind for each in listeners} >= {"tcp", "unix"}
    assert [each for each in listeners if not each.is_local] == []
    paths = [each.address for each in listeners if each.kind == "unix"]
    assert all(Path(path).parent.name.startswith("purerl-server-") for path in paths), paths
    assert {stat.S_IMODE(Path(path).parent.stat().st_mode) for path in paths} == {0o700}
    if os.getuid() == 0:
        command = [sys.executable, "-c", NOBODY, *paths, *(str(Path(path).resolve()) for path in paths)]
        assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == ""
    for pid in processes(folder):
        assert token_of_run().encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    logs = [path.read_text(errors="replace") for path in folder.glob("*.log")]
    assert logs
    assert not any(token_of_run() in text for text in logs)


def test_nothing_listens_for_others(url: str, servers: Path) -> None:
    """Also not after weights were loaded. As root, user 65534 tries to connect to each Unix socket."""
    _check(servers)


@pytest.mark.soak
def test_parts_of_a_divided_model_are_closed_too(models: tuple[Model, Model], tmp_path: Path) -> None:
    generator = build(models[0], tmp_path, tensor_parallel_size=2)
    generator.load_weights(TensorWeights(weights_in_files(models[1])), version=1)
    [completion] = generate(generator, [Prompt("0", [1, 2, 3], Sampling(max_tokens=4), 0)])
    assert set(completion.version) == {1}
    _check(tmp_path)
    generator.close()
    assert processes(tmp_path) == []
