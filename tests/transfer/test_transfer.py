"""Weights to other processes: they arrive as they were sent, or it is an error in time."""

from __future__ import annotations

import gc
import json
import signal
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from purerl.backends.transfer.buckets import WeightBuckets
from purerl.backends.transfer.engine.purerl_messages import FolderOfMessages, Messages, key_of, stores_at
from purerl.backends.transfer.engine.purerl_receiver import Digest, Receiver, TransferGroup, unpack
from purerl.backends.transfer.sender import TransferError
from purerl.backends.weights import TensorWeights
from purerl.errors import EngineError
from tests.transfer.processes import (
    CPU,
    SAYS_THAT_IT_WAITS,
    TENSORS,
    TOKEN,
    TRANSPORTS,
    check_received,
    filled,
    in_thread,
    new_sender,
    receivers,
    send,
    send_address,
    wait_for_file,
)

transports = pytest.mark.parametrize("transport", TRANSPORTS.values(), ids=TRANSPORTS)


@pytest.mark.parametrize("is_local", [True, False])
@transports
def test_every_process_gets_every_tensor(tmp_path: Path, transport: dict[str, Any], is_local: bool) -> None:
    """Several times, in buckets that are smaller than a tensor, and while they are being filled."""
    sender = new_sender(2, timeout=60.0, is_local=is_local)
    with receivers(2, tmp_path) as processes:
        for number in range(3):
            tensors = {name: value + number for name, value in TENSORS.items()}
            send(sender, processes, tensors, **transport)
            for rank in (1, 2):
                check_received(tmp_path, number, rank, tensors)
    assert (sender.group is None) is transport.get("is_shared", False), "nothing is broadcast that is in shared memory"


@transports
def test_process_that_is_killed_is_an_error_in_time(tmp_path: Path, transport: dict[str, Any]) -> None:
    """It has said that it is ready."""
    sender, buckets = new_sender(1, timeout=1.0), WeightBuckets(1, size=1000, **transport)
    with receivers(1, tmp_path, program=SAYS_THAT_IT_WAITS) as processes:
        send_address(processes, sender.address)
        wait_for_file(tmp_path / "waits-0")
        processes[0].send_signal(signal.SIGKILL)
        buckets.fill(TensorWeights(TENSORS), timeout=0.0)
        start = time.monotonic()
        with pytest.raises(TransferError, match="no report from the server within 1 seconds|a broadcast was given up"):
            sender.send(buckets)
        assert time.monotonic() - start < 30.0


def test_server_that_does_not_connect() -> None:
    with pytest.raises(TransferError, match="no receiver from the server within 0.2 seconds"):
        new_sender(1, timeout=0.2).send(filled())
    sender = new_sender(1, timeout=60.0)
    threading.Timer(0.2, sender.cancel).start()
    with pytest.raises(TransferError, match="given up"):
        sender.send(filled())


@transports
def test_error_of_loading_is_reported_and_the_sender_does_not_wait(transport: dict[str, Any]) -> None:
    """The engine fails at the first tensor of many buckets."""

    def load(stream) -> None:
        raise ValueError(f"there is no parameter {next(stream)[0]}")

    def receive(receiver: Receiver, number: int) -> None:
        with pytest.raises(ValueError, match="there is no parameter a"):
            receiver.receive(number, load)

    sender = new_sender(1, timeout=60.0)
    thread = in_thread(sender.address, receive)
    with pytest.raises(TransferError, match="did not load the weights: ValueError: there is no parameter a"):
        sender.send(filled(size=100, **transport))
    thread.join(60.0)


@transports
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data, header: data.__setitem__(5, data[5] + 1), "got other bytes"),
        (lambda data, header: [header[key].pop() for key in ("names", "dtypes", "shapes")], "got 5 tensors of 6"),
        (lambda data, header: data.view(-1, 16).copy_(data.view(-1, 16).flip(0).clone()), "got other bytes"),
    ],
)
def test_other_bytes_and_names_are_detected(
    change: Callable[[torch.Tensor, dict[str, Any]], object], words: str, transport: dict[str, Any]
) -> None:
    class Wrong(Receiver):
        def _bucket(self, bucket: int) -> tuple[dict[str, Any], torch.Tensor | None]:
            header, data = super()._bucket(bucket)
            if data is not None:
                change(data, header)
            return header, data

    sender = new_sender(1, timeout=60.0)
    wrong = threading.Thread(
        target=lambda address: Wrong(address, 1, token=TOKEN).receive(0, list), args=(sender.address,)
    )
    wrong.start()
    with pytest.raises(TransferError, match=words):
        sender.send(filled({name: torch.randn(4, 4) for name in "abcdef"}, **transport))
    wrong.join(60.0)


def test_trainer_that_fails_ends_the_transfer() -> None:
    class Failing(TensorWeights):
        def __iter__(self):
            yield "a", TENSORS["a"]
            raise ValueError("out of memory")

    errors = []

    def receive(receiver: Receiver, number: int) -> None:
        try:
            receiver.receive(number, dict)
        except RuntimeError as error:
            errors.append(str(error))

    sender, buckets = new_sender(1, timeout=60.0), WeightBuckets(1)
    thread = in_thread(sender.address, receive)
    with pytest.raises(ValueError, match="out of memory"):
        buckets.fill(Failing(TENSORS), timeout=0.0)
    with pytest.raises(TransferError, match="weights were not sent"):
        sender.send(buckets)
    thread.join(60.0)
    assert "the trainer did not send all weights" in errors[0]
    with pytest.raises(EngineError, match="out of memory"):
        list(buckets.read(1.0))


def test_digest_is_that_of_the_words_and_their_positions() -> None:
    words = [3, -5, 2**62, 2**63 - 1, 0, -(2**63)]
    expected = [sum(words) % 2**64, sum((k + 1) * word for k, word in enumerate(words)) % 2**64]
    for parts in ([words], [words[:1], words[1:]], [words[:4], words[4:]]):
        digest = Digest()
        for part in parts:
            digest.add(torch.tensor(part).view(torch.uint8))
        assert digest.hex() == f"{expected[0]:016x}{expected[1]:016x}-6"
    many = torch.randint(-(2**62), 2**62, (200_000,))
    digest = Digest()
    digest.add(many.view(torch.uint8))
    weighted = sum((k + 1) * word for k, word in enumerate(many.tolist())) % 2**64
    assert digest.hex() == f"{sum(many.tolist()) % 2**64:016x}{weighted:016x}-200000"


def test_memory_that_a_receiver_cannot_open_is_an_error() -> None:
    """As if the engine ran in another container."""

    class Elsewhere(Receiver):
        def data(self, header: dict[str, Any]) -> torch.Tensor:
            return super().data({**header, "path": f"{header['path']}0000"})

    sender = new_sender(1, timeout=60.0)
    address = sender.address

    def receive() -> None:
        with pytest.raises(RuntimeError, match="unable to open file"):
            Elsewhere(address, 1, token=TOKEN).receive(0, list)

    thread = threading.Thread(target=receive)
    thread.start()
    with pytest.raises(TransferError, match="did not load the weights: RuntimeError: unable to open file"):
        sender.send(filled(is_shared=True))
    thread.join(60.0)


def test_shared_memory_ends_with_the_weights() -> None:
    def is_open(path: Path) -> bool:
        return path.is_symlink() and str(path.readlink()) == "/memfd:purerl-weights (deleted)"

    buckets = filled(size=1000, is_shared=True)
    paths = [Path(bucket.header["path"]) for bucket in buckets.read(1.0)]
    assert len(set(paths)) > 1
    assert all(map(is_open, paths))
    del buckets
    gc.collect()
    assert not any(map(is_open, paths))


@transports
def test_memory_of_the_weights_before_is_used_again(transport: dict[str, Any]) -> None:
    """Only if all readers are ready for the new weights, so that none reads the old ones."""
    old = filled(size=1000, **transport)
    addresses = [memory.data.data_ptr() for memory in old.memory]
    for readers, attached, expected in ((2, 2, True), (2, 1, False), (0, 0, True)):
        new = WeightBuckets(2, readers=readers, old=old, size=1000, **transport)
        for _ in range(attached):
            new.attach()
        new.fill(TensorWeights(TENSORS), timeout=0.01)
        assert ([memory.data.data_ptr() for memory in new.memory] == addresses) is expected
        values = [(name, value) for b in new.read(1.0) for name, value in unpack(b.data, b.header)]
        for (name, value), (own, tensor) in zip(values, TENSORS.items(), strict=True):
            assert name == own
            torch.testing.assert_close(value, tensor, rtol=0, atol=0)
        old = filled(size=1000, **transport) if not expected else new
        addresses = [memory.data.data_ptr() for memory in old.memory]


def test_messages_and_members_without_the_token_are_refused(tmp_path: Path) -> None:
    """A stranger who reaches the port of the sender cannot name shared memory, report a success, or get weights."""
    sender = new_sender(1, timeout=60.0, is_local=False)
    address = sender.address
    stranger = stores_at(address)("0")
    stranger.set("bucket/0", json.dumps({"names": ["a"], "path": "/etc/hostname", "bytes": 8, "handles": {}}))
    with pytest.raises(RuntimeError, match="the message 'bucket/0' is of a stranger"):
        Receiver(address, 1, token=TOKEN).receive(0, list)
    sender = new_sender(1, timeout=60.0, is_local=False)
    stores_at(sender.address)("0").set("ready/1", b"cpu host")
    with pytest.raises(TransferError, match="the message 'ready/1' is of a stranger"):
        sender.send(filled())
    sender = new_sender(1, timeout=10.0)
    other = TransferGroup(sender._open_store("group"), sender.address, 1, CPU, "another token")
    own = TransferGroup(sender._open_store("group"), sender.address, 0, CPU, TOKEN)
    data, got = torch.ones(3, dtype=torch.uint8), torch.zeros(3, dtype=torch.uint8)

    def join() -> None:
        with suppress(RuntimeError):
            other.broadcast(got)

    thread = threading.Thread(target=join)
    thread.start()
    with pytest.raises(RuntimeError, match="a process without the token of the server is in the group"):
        own.broadcast(data)
    thread.join()
    assert not got.any()


def test_local_transfers_open_no_port_and_leave_no_files(tmp_path: Path) -> None:
    sender = new_sender(1, timeout=60.0)
    folder = Path(sender.address.folder)
    assert sender.address.port == 0
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with receivers(1, tmp_path, are_started=True) as processes:
        for _ in range(2):
            send(sender, processes, TENSORS, is_shared=True)
    assert [path.name for path in folder.iterdir() if not path.name.startswith(".")] == []
    sender.cancel()
    assert not folder.exists()


def test_a_receiver_that_is_late_writes_nothing_after_a_transfer_has_failed() -> None:
    sender = new_sender(1, timeout=0.05)
    address = sender.address
    with pytest.raises(TransferError, match="no receiver from the server"):
        sender.send(filled())
    folder = Path(address.folder)
    late = Messages(stores_at(address)(str(address.number)), key_of(TOKEN, address), 0.05)
    late.set("ready/1", "cpu")
    with pytest.raises(RuntimeError, match="no message 'bucket/0' within"):
        late.get("bucket/0")
    sender.cancel()
    assert not folder.exists()
    with pytest.raises(RuntimeError, match="the transfer has ended"):
        late.set("report/1", {})


@pytest.mark.parametrize("key", ["bucket/0", "read/1/12"])
def test_messages_in_a_folder(tmp_path: Path, key: str) -> None:
    store = FolderOfMessages(tmp_path / "7")
    assert not store.check([key])
    store.delete_key(key)
    store.set(key, b"first")
    store.set(key, b"second")
    assert store.check([key])
    assert not store.check([key, "other"])
    assert store.get(key) == b"second"
    assert stat.S_IMODE((tmp_path / "7").stat().st_mode) == 0o700
    store.delete_key(key)
    assert [*(tmp_path / "7").iterdir()] == []
