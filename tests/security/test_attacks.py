"""The attacks find everything in a process that protects nothing."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage] - torch documents it

from tests.security.intruders import Intruders
from tests.security.siege import Siege, wait_until
from tests.security.surface import Listener

_KEYS = ("0/0", "0/1")


def _protect_nothing(folder: Path, connection: Connection) -> None:
    """Do what ranks did without protection: a store, a server without a token, and files that everybody can write."""
    os.umask(0)
    (folder / "run").mkdir()
    (folder / "run/state").write_text("a secret")
    os.chdir(folder / "run")
    server = ThreadingHTTPServer(("", 0), SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    store.set(_KEYS[0], b"a call\0" + pickle.dumps("a message of rank 0"))
    connection.send(None)
    pickle.loads(bytes(store.get(_KEYS[1])).partition(b"\0")[2])  # this is the fault
    connection.recv()
    os._exit(0)


@pytest.fixture
def siege(folder: Path, intruders: Intruders) -> Iterator[Siege]:
    """Attacks on `_protect_nothing`."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_protect_nothing, args=(folder, theirs))
    process.start()
    ours.recv()
    assert process.pid is not None
    yield Siege(process.pid, folder, intruders)
    process.kill()
    process.join()


def _opened(siege: Siege) -> set[Listener]:
    """Sockets of the process, without those on loopback that it has inherited from this process."""
    return {item for item in siege.listeners if not item.is_local}


def test_attacks_succeed(siege: Siege) -> None:
    siege.attack()
    wait_until(siege.marker.exists)
    findings = "\n".join(sorted(siege.findings()))
    folder = siege.folder / "run"
    assert "the run has executed a payload: uid=0(root)" in findings
    assert "another user: HTTP 200: GET / {}" in findings
    assert f"another user: the folder {folder} can be written" in findings
    assert f"another user: the file {folder / 'state'} can be written" in findings
    assert folder / "state" in siege.readable("another user")
    assert siege.values().keys() >= {_KEYS[0]}
    assert len(_opened(siege)) >= 2
    assert siege.reached("another user") >= _opened(siege)


def test_attacks_from_another_network_succeed(siege: Siege, intruders: Intruders) -> None:
    if intruders.network is None:
        pytest.skip(intruders.missing)
    siege.attack()
    assert siege.reached("another network") == _opened(siege)
    assert "another network: HTTP 200: GET / {}" in siege.findings()
    [report] = siege.reports["another network"]
    assert report.values.keys() >= {_KEYS[0]}
