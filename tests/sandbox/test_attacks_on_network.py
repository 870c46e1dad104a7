"""Programs that try to reach servers, and to open sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from purerl.sandbox import Pool

from .attacks import marker, open_pool, report_of


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with open_pool("auto") as opened:
        yield opened


def test_servers_of_the_host_cannot_be_reached(pool: Pool, tmp_path: Path) -> None:
    abstract, path = f"\0{marker()}", str(tmp_path / "socket")
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as named,
        socket.socket(socket.AF_UNIX) as unnamed,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
    ):
        named.bind(path)
        unnamed.bind(abstract)
        udp.bind(("127.0.0.1", 0))
        udp.settimeout(0.2)
        for server in (named, unnamed):
            server.listen()
        source = f"""
def connect(family, address):
    with socket.socket(family) as client: client.connect(address)
tcp, udp = {tcp.getsockname()[1]}, {udp.getsockname()[1]}
print(json.dumps([attempt(connect, socket.AF_INET, ("127.0.0.1", tcp)),
    attempt(connect, socket.AF_INET, ("8.8.8.8", 53)), attempt(connect, socket.AF_INET6, ("::1", tcp)),
    attempt(connect, socket.AF_UNIX, {abstract!r}), attempt(connect, socket.AF_UNIX, {path!r}),
    attempt(lambda: socket.getaddrinfo("example.com", 80))]))
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
    client.sendto(b"x", ("127.0.0.1", udp))
"""
        outcomes = report_of(pool, source)
        with pytest.raises(TimeoutError):
            udp.recv(1)
    assert outcomes[0] == "ECONNREFUSED"
    assert outcomes[1] == "ENETUNREACH"
    assert set(outcomes[2:5]) <= {"ECONNREFUSED", "ENETUNREACH", "EADDRNOTAVAIL", "ENOENT", "EPERM"}
    assert outcomes[5] != "done"


def test_other_families_of_sockets_do_not_exist(pool: Pool) -> None:
    """A virtual machine's AF_VSOCK reaches its host from every network namespace."""
    families = {"AF_NETLINK": 16, "AF_PACKET": 17, "AF_ALG": 38, "AF_VSOCK": 40, "AF_BLUETOOTH": 31, "AF_CAN": 29,
                "AF_XDP": 44, "AF_RDS": 21, "AF_TIPC": 30, "AF_KEY": 15}  # fmt: skip
    source = f"print(json.dumps([attempt(socket.socket, family, 3) for family in {list(families.values())}]))"
    assert set(report_of(pool, source)) == {"EAFNOSUPPORT"}
    source = (
        "print(json.dumps([attempt(socket.socket, 2, kind, p) for kind, p in ((3, 1), (1, 132), (2, 136), (2, 1))]))"
    )
    assert set(report_of(pool, source)) == {"EPROTONOSUPPORT"}


def test_a_program_can_use_its_own_loopback(pool: Pool) -> None:
    source = """
import threading
server = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=lambda: server.accept()[0].sendall(b"hello")).start()
with socket.create_connection(server.getsockname()) as client: answer = client.recv(9).decode()
print(json.dumps(answer))
"""
    assert report_of(pool, source) == "hello"
