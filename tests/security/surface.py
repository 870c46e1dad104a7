"""The attack surface of a process tree, read from /proc by its owner: listening sockets, folders, files, secrets."""

from __future__ import annotations

import re
import socket
import stat
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from attrs import frozen

__all__ = [
    "Listener",
    "Surface",
    "descendants",
    "environment",
    "public_arguments",
    "secrets_of",
    "surface_of",
    "tcp_sockets",
]

_LISTEN, _UNCONNECTED = "0A", "07"
_HIDDEN = re.compile(rb"TOKEN|SECRET|KEY|PASSWORD")
_SECRET = re.compile(rb"[0-9a-zA-Z_\-]{24,}")


@frozen(order=True)
class Listener:
    """A socket that accepts connections (of UDP: datagrams) at `address`, and the process that has it."""

    kind: str
    address: str
    port: int
    owner: str
    pid: int

    @property
    def is_local(self) -> bool:
        """Whether only processes of this host reach it."""
        if self.kind == "unix":
            return True
        return ip_address(self.address).is_loopback


@frozen
class Surface:
    """Listening sockets, files and folders of processes. Paths of the installation and of the system are not in it."""

    listeners: frozenset[Listener]
    paths: frozenset[Path]


def descendants(pid: int) -> list[int]:
    """`pid`, and the processes that descend from it."""
    children: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            children += map(int, file.read_text().split())
    return [pid, *(other for child in children for other in descendants(child))]


def surface_of(pids: Iterable[int], folders: Iterable[Path]) -> Surface:
    """The surface of the processes `pids`; `folders` belong to it, except those like /tmp, and what is in them."""
    pids = [*pids]
    inodes = {inode: (_command(pid), pid) for pid in pids for inode in _socket_inodes(pid)}
    paths = {path for pid in pids for path in _open_paths(pid)}
    for folder in folders:
        paths |= {*folder.rglob("*")}
        if folder.is_dir() and not folder.stat().st_mode & stat.S_ISVTX:
            paths.add(folder)
    return Surface(frozenset(_listeners(inodes)), frozenset(paths))


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return "ended"


def _links(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                yield str(path.readlink())


def _socket_inodes(pid: int) -> list[int]:
    return [int(link[8:-1]) for link in _links(pid) if link.startswith("socket:[")]


def _open_paths(pid: int) -> Iterator[Path]:
    """Files that the process has opened for writing or in a temporary folder."""
    for link in _links(pid):
        path = Path(link)
        with suppress(OSError):
            if path.is_absolute() and stat.S_ISREG(path.stat().st_mode) and "/proc/" not in link:
                yield path


def _listeners(inodes: dict[int, tuple[str, int]]) -> Iterator[Listener]:
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
            (
                _,
                local,
                _,
                state,
                *_,
            ) = fields = line.split()
            inode = int(fields[9])
            if inode in inodes and state == (_LISTEN if kind.startswith("tcp") else _UNCONNECTED):
                host, _, port = local.partition(":")
                yield Listener(kind[:3], str(_address(host)), int(port, 16), *inodes[inode])
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if int(fields[6]) in inodes and int(fields[3], 16) & 0x10000:  # it accepts connections
            yield Listener("unix", fields[7] if len(fields) > 7 else "", 0, *inodes[int(fields[6])])


def tcp_sockets(pid: int) -> int:
    """The number of TCP sockets of a process, connections included."""
    lines = [
        line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]
    ]
    return len({int(fields[9]) for fields in lines}.intersection(_socket_inodes(pid)))


def _address(text: str) -> IPv4Address | IPv6Address:
    """An address of /proc/net/tcp: words in the byte order of this computer."""
    words = [int(text[k : k + 8], 16) for k in range(0, len(text), 8)]
    data = struct.pack(f"={len(words)}I", *words)
    address = ip_address(socket.inet_ntop(socket.AF_INET if len(data) == 4 else socket.AF_INET6, data))
    return getattr(address, "ipv4_mapped", None) or address


def environment(pid: int) -> dict[bytes, bytes]:
    """The variables of a process, as it was started."""
    with suppress(OSError):
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return {name: value for name, _, value in (pair.partition(b"=") for pair in pairs)}
    return {}


def secrets_of(pids: Iterable[int], paths: Iterable[Path]) -> set[bytes]:
    """Secrets of the run: in variables of `pids` with such names, and in files that only their owner may read."""
    secrets: set[bytes] = set()
    for pid in pids:
        hidden = [value for name, value in environment(pid).items() if _HIDDEN.search(name)]
        secrets |= {secret for value in hidden for secret in _SECRET.findall(value)}
    for path in paths:
        with suppress(OSError):
            if path.is_file() and re.search("secret|token|key", path.name) and not path.stat().st_mode & 0o077:
                data = path.read_bytes()
                secrets |= {data, data.hex().encode(), *_SECRET.findall(data)}
    return {secret for secret in secrets if len(secret) >= 16}


def public_arguments(pids: Iterable[int]) -> bytes:
    """The command lines of processes, which every user of the host can read."""
    lines: list[bytes] = []
    for pid in pids:
        with suppress(OSError):
            lines.append(Path(f"/proc/{pid}/cmdline").read_bytes())
    return b"\n".join(lines)
