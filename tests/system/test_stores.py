"""Stores of messages: what a stranger writes is refused before it is read, and a folder has whole values only."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore, TCPStore  # pyright: ignore[reportPrivateImportUsage] - torch documents them

from purerl.errors import EngineError
from purerl.system.run_secret import derive_key, derive_token, new_secret, shared_secret
from purerl.system.stores import FolderStore, SignedStore, Store, listening_store
from tests.security.surface import surface_of

KEY = bytes(range(32))
STRANGER = "a message that no process of this run has sent"


class Payload:
    """An object whose pickle creates the file `marker` when it is read."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return partial(Path.touch, self._marker), ()


def _signed(store: Any | None = None, key: bytes = KEY) -> SignedStore:
    return SignedStore(store or HashStore(), key)


@pytest.mark.parametrize("kind", ["folder", "signed"])
def test_values_by_key(kind: str, tmp_path: Path) -> None:
    store: Store = FolderStore(tmp_path, 1.0) if kind == "folder" else _signed()
    assert not store.check(["a/b"])
    store.set("a/b", b"first")
    store.set("a/b", b"second")
    store.set("..", b"")
    assert store.get("a/b") == b"second"
    assert store.multi_get(["..", "a/b"]) == [b"", b"second"]
    assert store.check(["a/b", ".."])
    store.delete_key("a/b")
    store.delete_key("never set")
    assert not store.check(["a/b", ".."])
    assert [path.parent for path in tmp_path.rglob("*")] == ([tmp_path] if kind == "folder" else [])


def test_a_folder_waits_for_a_value_and_says_when_it_does_not_exist_any_more(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    store = FolderStore(folder, 0.05)
    with pytest.raises(RuntimeError, match=r"no value of 'a' within 0\.05 seconds"):
        store.get("a")
    waiting = FolderStore(folder, 60.0)
    threading.Timer(0.05, store.set, ("a", b"value")).start()
    assert waiting.get("a") == b"value"
    store.delete_key("a")
    folder.rmdir()
    for call in (lambda: waiting.get("a"), lambda: waiting.check(["a"]), lambda: waiting.set("a", b"")):
        with pytest.raises(RuntimeError, match="cannot be used"):
            call()


def test_readers_of_a_folder_see_whole_values(tmp_path: Path) -> None:
    store, values = FolderStore(tmp_path, 60.0), [bytes([k]) * 2**20 for k in range(8)]
    writer = threading.Thread(target=lambda: [store.set("a", value) for value in values])
    writer.start()
    while writer.is_alive():
        assert store.get("a") in values
    assert store.get("a") == values[-1]


def test_what_a_stranger_writes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    shared, marker = HashStore(), tmp_path / "marker"
    store = _signed(shared)
    store.set("a", b"value")
    forged = [b"", b"short", bytes(32), bytes(32) + b"value", pickle.dumps(Payload(marker)), shared.get("a")[:-1]]
    for value in forged:
        shared.set("b", value)
        with pytest.raises(EngineError, match=STRANGER):
            store.get("b")
        with pytest.raises(EngineError, match=STRANGER):
            store.multi_get(["a", "b"])
    shared.set("b", shared.get("a"))  # a value of another key
    with pytest.raises(EngineError, match=STRANGER):
        store.get("b")
    with pytest.raises(EngineError, match=STRANGER):
        _signed(shared, bytes(32)).get("a")  # a rank with another secret
    assert not marker.exists()
    assert store.get("a") == b"value"


def test_a_store_listens_at_its_address_only() -> None:
    store = listening_store("127.0.0.1", 0, 5.0)
    listeners = [one for one in surface_of([os.getpid()], ()).listeners if one.port == store.port]
    assert [one.is_local for one in listeners] == [True]
    client = TCPStore("127.0.0.1", store.port, is_master=False, timeout=timedelta(seconds=5))
    client.set("a", "b")
    assert store.get("a") == b"b"


def test_keys_are_those_of_the_secret_and_of_their_purpose() -> None:
    secret = new_secret()
    own = derive_key("a")
    with shared_secret(secret):
        shared = derive_key("a")
        assert shared == bytes.fromhex(derive_token("a"))
        with shared_secret(new_secret()):
            assert derive_key("a") != shared
        assert derive_key("a") == shared
        assert derive_key("b") != shared
    assert derive_key("a") == own != shared
