"""Processes that may not do anything in a run: of another user of this host, and in another network.

They are forked, because another user may not read the files of this Python. So whatever they import is imported before.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from attrs import define, frozen

from tests.security.attacks import Attack, Joining, Report
from tests.security.network import Network

__all__ = ["NOBODY", "Intruder", "Intruders", "in_network", "other_user"]

NOBODY = 65534
_DEADLINE = 120.0  # seconds: for a hang
_CLONE_NEWNET = 0x40000000


@define
class Intruder:
    """A process that does `Attack`s, one after the other."""

    name: str
    connection: Connection

    def start(self, attack: Attack | Joining) -> None:
        """Begin `attack`."""
        self.connection.send(attack)

    def report(self) -> Report:
        """The report of the attack that was started, when it is done."""
        assert self.connection.poll(_DEADLINE), f"{self.name} gives no answer"
        report = self.connection.recv()
        assert not report.errors, report.errors
        return report


@frozen
class Intruders:
    """The processes that attack, and the network of the one that is not on this host.

    missing  why there is no other network
    """

    processes: Sequence[Intruder]
    network: Network | None
    missing: str = ""


@contextmanager
def other_user() -> Iterator[Intruder]:
    """A process of the user nobody, without any group of this user. The test is skipped if this is not root."""
    if os.geteuid() != 0:
        pytest.skip("only root may start a process of another user")
    with _forked("another user", None) as intruder:
        yield intruder


@contextmanager
def in_network(network: Network) -> Iterator[Intruder]:
    """A process of the user nobody in `network`, which has the loopback interface of that network only."""
    with _forked("another network", network.name) as intruder:
        yield intruder


@contextmanager
def _forked(name: str, namespace: str | None) -> Iterator[Intruder]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_work, args=(theirs, ours, namespace))
    process.start()
    theirs.close()
    try:
        yield Intruder(name, ours)
        ours.send(None)
        process.join(_DEADLINE)
    finally:
        process.kill()
        process.join()
        ours.close()


def _work(connection: Connection, other_end: Connection, namespace: str | None) -> None:
    other_end.close()
    if namespace is not None:
        _enter(namespace)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    os.chdir("/")
    while (attack := connection.recv()) is not None:
        connection.send(attack.run())
    os._exit(0)


def _enter(namespace: str) -> None:
    """Let this process use the network namespace with this name."""
    descriptor = os.open(Path("/run/netns", namespace), os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(descriptor)
