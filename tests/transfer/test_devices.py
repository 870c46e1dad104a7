"""Weights that do not pass through the host: by handles of memory of the trainer's device, and by broadcast from it.

The same code runs here with the memory of the CPU in place of that of a device. Tests marked `gpu` run it on devices.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor

from purerl.backends.transfer.buckets import WeightBuckets
from purerl.backends.transfer.engine import purerl_receiver
from purerl.backends.transfer.engine.purerl_receiver import (
    Digest,
    Handle,
    Receiver,
    TransferGroup,
    handle_of,
    identity_of,
    opened,
)
from purerl.backends.transfer.sender import Sender, TransferError, _problem_of
from purerl.backends.transfer.staging import Staging
from purerl.backends.weights import TensorWeights
from purerl.errors import EngineError
from tests.transfer.processes import (
    CPU,
    TENSORS,
    TRANSPORTS,
    check_received,
    filled,
    in_thread,
    receivers,
    send,
    send_address,
)

EQUAL = {name: torch.randn(25) for name in "abcdefgh"}  # each takes 112 bytes
HANDLES = TRANSPORTS["handles"]
devices = pytest.mark.parametrize("transport", [HANDLES, TRANSPORTS["staged broadcast"]], ids=["handles", "broadcast"])


class FromDevice(Receiver):
    """Receives through handles alone."""

    def data(self, header: dict[str, Any]) -> Tensor:
        raise AssertionError("it has passed through the host")


def test_bucket_is_in_a_buffer_until_all_readers_have_read_it() -> None:
    """Also those that have not asked for it yet. Meanwhile other buckets are not staged."""
    staging, done = Staging(CPU, 100, readers=2), {"first": False, "second": False}
    first, second = staging.take(0, 90), staging.take(1, 100)
    assert first is not None
    assert second is not None
    assert [len(first), len(second)] == [90, 100]
    assert staging.take(2, 10) is None, "nobody has read"
    lent = staging.lend(0, lambda: done["first"])
    assert lent is not None
    assert lent.data_ptr() == first.data_ptr()
    done["first"] = True
    assert staging.take(2, 10) is None, "one of two has read"
    staging.lend(0, lambda: done["second"])
    assert staging.take(2, 10) is None, "the second one still reads"
    done["second"] = True
    assert staging.take(2, 101) is None, "larger than a buffer"
    third = staging.take(2, 10)
    assert third is not None
    assert third.data_ptr() == first.data_ptr()
    assert staging.lend(0, lambda: True) is None, "the buffer has another bucket"
    assert staging.take(3, 10) is None


def test_without_memory_on_the_device_nothing_is_staged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **options: Any) -> Tensor:
        raise torch.OutOfMemoryError("all is used")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", fail)
        staging = Staging(CPU, 2**20, readers=1)
    assert staging.take(0, 1) is None
    assert caplog.messages == ["weights pass through the memory of the host: cpu has no 2 MiB for them: all is used"]


def test_staged_bucket_is_that_of_the_host() -> None:
    for tensors in (TENSORS, EQUAL):
        buckets = WeightBuckets(1, size=1000, readers=1, device=CPU)
        buckets.fill(TensorWeights(tensors), timeout=0.0)
        staged = 0
        for number, bucket in enumerate(buckets.read(1.0)):
            assert buckets.staging is not None
            data = buckets.staging.lend(number, lambda: False)
            if data is not None:
                assert torch.equal(data[: len(bucket.data)], bucket.data)
                staged += 1
        assert staged == (1 if tensors is EQUAL else 2)


def test_weights_do_not_pass_through_the_host() -> None:
    sender, received = Sender("127.0.0.1", 1, timeout=60.0), dict[str, Tensor]()
    receiver = FromDevice(sender.address, 1)
    for number in range(3):
        tensors = {name: value + number for name, value in EQUAL.items()}
        thread = threading.Thread(target=receiver.receive, args=(number, received.update), daemon=True)
        thread.start()
        sender.send(filled(tensors, size=500, **HANDLES))
        thread.join(60.0)
        torch.testing.assert_close(received, tensors, rtol=0, atol=0)


def test_two_servers_read_the_same_buffers() -> None:
    senders = [Sender("127.0.0.1", 1, timeout=60.0) for _ in range(2)]
    received: list[dict[str, Tensor]] = [{}, {}]
    buckets = filled(EQUAL, size=500, **{**HANDLES, "readers": 2})
    threads = [
        threading.Thread(target=FromDevice(sender.address, 1).receive, args=(0, own.update), daemon=True)
        for sender, own in zip(senders, received, strict=True)
    ]
    threads += [threading.Thread(target=sender.send, args=(buckets,), daemon=True) for sender in senders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    for own in received:
        torch.testing.assert_close(own, EQUAL, rtol=0, atol=0)


class Slow(Receiver):
    """Reads the first bucket from the device only after all buckets have been written."""

    has_begun, may_read = threading.Event(), threading.Event()

    def _read(self, handle: Handle, size: int) -> Tensor | None:
        self.has_begun.set()
        self.may_read.wait(60.0)
        return super()._read(handle, size)


class Early(Slow):
    """Says that it has read before it reads."""

    def _bucket(self, number: int, bucket: int) -> tuple[dict[str, Any], Tensor | None]:
        self._store.set(f"{number}/read/1/{bucket}", "")
        return super()._bucket(number, bucket)


def send_to_slow_receiver(receiver_class: type[Slow] = Slow) -> dict[str, Tensor]:
    """What a receiver gets that reads while the rest is written."""
    Slow.has_begun, Slow.may_read = threading.Event(), threading.Event()
    sender, received = Sender("127.0.0.1", 1, timeout=60.0), dict[str, Tensor]()

    class Waiting(TensorWeights):
        def __iter__(self) -> Iterator[tuple[str, Tensor]]:
            for number, each in enumerate(super().__iter__()):
                if number == 2:
                    assert Slow.has_begun.wait(60.0)  # reading the first bucket, which has one tensor
                yield each

    def fill() -> None:
        buckets.fill(Waiting(EQUAL), timeout=60.0)
        Slow.may_read.set()

    buckets = WeightBuckets(1, size=120, **{"readers": 1, **HANDLES})
    buckets.attach()
    threading.Thread(target=fill, daemon=True).start()
    receiver = receiver_class(sender.address, 1)
    thread = threading.Thread(target=receiver.receive, args=(0, received.update), daemon=True)
    thread.start()
    try:
        sender.send(buckets)
    finally:
        thread.join(60.0)
    return received


def test_buffer_is_not_written_again_before_it_was_read() -> None:
    torch.testing.assert_close(send_to_slow_receiver(), EQUAL, rtol=0, atol=0)


def test_buffer_that_is_written_again_too_early_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants of the test before: of the receiver, and of the buffers, for which one that may read has read."""
    with pytest.raises(TransferError, match="got other bytes"):
        send_to_slow_receiver(Early)
    monkeypatch.setattr(Staging, "_is_read", lambda _, buffer: len(buffer.readers) >= 1)
    with pytest.raises(TransferError, match="got other bytes"):
        send_to_slow_receiver()


@devices
def test_receiver_that_is_killed_in_the_middle_and_one_that_replaces_it(
    tmp_path: Path, transport: dict[str, Any]
) -> None:
    """`fill` does not wait for it, and the next one gets the copy of the host."""
    stall = "def load(stream):\n    next(stream)\n    open(f'{path}/loads', 'w').close()\n    time.sleep(600)\n"
    tensors = {f"{name}{k}": value for k in range(20) for name, value in TENSORS.items()}
    buckets = WeightBuckets(1, size=1000, readers=1, **transport)
    sender = Sender("127.0.0.1", 1, timeout=100.0)
    with receivers(1, tmp_path, program=stall) as processes:
        send_address(processes, sender.address)
        errors: list[BaseException] = []

        def run() -> None:
            try:
                sender.send(buckets)
            except TransferError as error:
                errors.append(error)

        sending = threading.Thread(target=run)
        sending.start()
        buckets.attach()
        buckets.fill(TensorWeights(tensors), timeout=0.0)
        while not (tmp_path / "loads").exists():
            time.sleep(0.05)
        processes[0].send_signal(signal.SIGKILL)
        sender.cancel()
        sending.join(50.0)
        assert len(errors) == 1
    buckets.end_staging()
    sender = Sender("127.0.0.1", 1, timeout=60.0)
    with receivers(1, tmp_path) as processes:
        send_address(processes, sender.address)
        sender.send(buckets)
        check_received(tmp_path, 0, 1, tensors)


@pytest.mark.parametrize("transport", [{}, TRANSPORTS["staged broadcast"]], ids=["gloo", "staged broadcast"])
def test_broadcast_to_a_process_that_is_stopped_is_given_up_at_once(tmp_path: Path, transport: dict[str, Any]) -> None:
    """Long before the timeout, and although it has joined the group."""
    body = "    open(f'{path}/waits-{number}', 'w').close()\n    return old(self, number, bucket)"
    program = f"old = Receiver._bucket\ndef wait(self, number, bucket):\n{body}\nReceiver._bucket = wait"
    sender, buckets = Sender("127.0.0.1", 1, timeout=100.0), WeightBuckets(2, **transport)
    times = []

    def stop_and_cancel(process: subprocess.Popen[str]) -> None:
        while not (tmp_path / "waits-1").exists():
            time.sleep(0.02)
        process.send_signal(signal.SIGSTOP)
        buckets.fill(TensorWeights({"large": torch.zeros(2**24)}), timeout=0.0)
        while not sender._store.check(["1/bucket/0"]):
            time.sleep(0.02)
        time.sleep(0.5)
        times.append(time.monotonic())
        sender.cancel()

    with receivers(1, tmp_path, program=program) as processes:
        send(sender, processes, TENSORS, **transport)
        send_address(processes, sender.address)
        threading.Thread(target=stop_and_cancel, args=(processes[0],)).start()
        with pytest.raises(TransferError, match="a broadcast was given up"):
            sender.send(buckets)
    assert time.monotonic() - times[0] < 30.0


def test_group_that_is_aborted_while_it_is_joined_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    joins, may_join, calls = threading.Event(), threading.Event(), list[str]()

    def join(*_: Any) -> Any:
        joins.set()
        may_join.wait(60.0)
        calls.append("joined")
        return SimpleNamespace(broadcast=lambda *_: calls.append("broadcast"), abort=lambda: calls.append("abort"))

    monkeypatch.setattr(purerl_receiver, "_gloo", join)
    sender = Sender("127.0.0.1", 1, timeout=60.0)
    group = TransferGroup(sender._store, sender.address, 0, CPU)
    threading.Thread(target=lambda: (joins.wait(60.0), group.abort())).start()
    with pytest.raises(RuntimeError, match="a broadcast was given up"):
        group.broadcast(torch.zeros(1))
    may_join.set()
    while "joined" not in calls:
        time.sleep(0.01)
    time.sleep(0.2)
    assert calls == ["joined"]


def test_receiver_leaves_the_group_of_a_sender_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purerl_receiver, "_RECEIVERS", {})
    groups = []
    for _ in range(2):
        sender = Sender("127.0.0.1", 1, timeout=60.0)
        arguments = (sender.address, 1, CPU, dict)
        thread = threading.Thread(target=purerl_receiver._receive, args=arguments, daemon=True)
        thread.start()
        sender.send(filled(EQUAL))
        thread.join(60.0)
        groups += [receiver._group for receiver in purerl_receiver._RECEIVERS.values()]
    assert [group._is_aborted.is_set() for group in groups] == [True, False]


def test_receiver_on_another_device_reads_the_memory_of_the_host(tmp_path: Path) -> None:
    elsewhere = "purerl_receiver.identity_of = lambda device: 'cpu elsewhere'\npurerl_receiver.opened = None"
    sender = Sender("127.0.0.1", 1, timeout=60.0)
    with receivers(1, tmp_path, program=elsewhere) as processes:
        buckets = send(sender, processes, EQUAL, **HANDLES)
    check_received(tmp_path, 0, 1, EQUAL)
    assert buckets.staging is not None
    assert buckets.staging.take(99, 1) is not None, "its buffers are not kept for a receiver that does not read them"


def test_receiver_that_cannot_open_the_memory_reads_that_of_the_host(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With a warning for each start of the server."""
    broken = "def fail(*_):\n    raise RuntimeError('invalid device context')\npurerl_receiver.opened = fail"
    sender = Sender("127.0.0.1", 1, timeout=60.0)
    with receivers(1, tmp_path, program=broken) as processes, caplog.at_level(logging.WARNING):
        for number in range(2):
            send(sender, processes, EQUAL, **HANDLES)
            check_received(tmp_path, number, 1, EQUAL)
    text = "process 1 of the server cannot open that of a device: invalid device context"
    assert caplog.messages == [f"weights pass through the memory of the host: {text}"]


def test_memory_that_cannot_be_shared_is_not(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(data: Tensor) -> Handle:
        raise RuntimeError("not supported")

    monkeypatch.setattr("purerl.backends.transfer.sender.handle_of", fail)
    received: dict[str, Tensor] = {}
    sender = Sender("127.0.0.1", 1, timeout=60.0)
    thread = in_thread(sender.address, lambda receiver, number: receiver.receive(number, received.update))
    sender.send(filled(EQUAL, **HANDLES))
    thread.join(60.0)
    torch.testing.assert_close(received, EQUAL, rtol=0, atol=0)
    assert caplog.messages == [
        "weights pass through the memory of the host: that of the trainer's device cannot be shared: not supported"
    ]


def test_no_memory_is_left(tmp_path: Path) -> None:
    def names() -> list[str]:
        return [path.name for path in Path("/dev/shm").glob(f"torch_{os.getpid()}_*")]

    before = names()
    sender = Sender("127.0.0.1", 2, timeout=60.0)
    with receivers(2, tmp_path) as processes:
        for _ in range(2):
            buckets = send(sender, processes, EQUAL, **HANDLES)
            assert len(names()) > len(before)
            buckets.end_staging()
            gc.collect()
            assert names() == before, "the receivers still run"


def test_handle_is_opened_on_the_device_of_the_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number in the other process may differ. torch's own function passes the same arguments."""
    values = [3, b"\x00\xff handle", 100, 0, b"counters", 5, b"event", True]
    handle = [value.decode("latin-1") if isinstance(value, bytes) else value for value in values]
    calls: list[list[Any]] = []
    storage = torch.UntypedStorage(0)
    new = staticmethod(lambda *arguments: calls.append([*arguments]) or storage)
    monkeypatch.setattr(torch, "UntypedStorage", type("Storage", (), {"_new_shared_cuda": new}))
    monkeypatch.setattr(torch, "empty", lambda *_, **__: torch.tensor([], dtype=torch.uint8))
    opened(handle, torch.device("cuda", 1))
    names = rebuild_cuda_tensor.__code__.co_varnames[6:15]
    order = [name for name in names if name.startswith(("storage_", "ref_counter_", "event_"))]
    assert calls == [[1, *values[1:]]]
    assert order == [
        "storage_device",
        "storage_handle",
        "storage_size_bytes",
        "storage_offset_bytes",
        "ref_counter_handle",
        "ref_counter_offset",
        "event_handle",
        "event_sync_required",
    ]


@pytest.mark.parametrize(
    ("own", "others", "is_wrong"),
    [
        ("cuda GPU-a", ["cuda GPU-b", "cuda GPU-c"], False),
        ("cuda GPU-a", ["cuda GPU-a"], True),
        ("cuda GPU-a", ["cuda GPU-b", "cuda GPU-b"], True),
        ("cuda GPU-a", ["cpu host"], True),
        ("cpu host", ["cpu host"], False),
    ],
)
def test_broadcast_between_devices_needs_one_for_each_process(own: str, others: list[str], is_wrong: bool) -> None:
    problem = _problem_of(own, others)
    assert (problem is not None) is is_wrong
    if problem is not None:
        assert f"nccl: the trainer has {own}, and the processes of the server have {', '.join(others)}" in str(problem)
        assert "set server.weight_transfer to cuda_ipc or shared_memory" in str(problem)


def test_broadcast_to_the_device_of_the_trainer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is sent; the receiver gets the reason."""
    monkeypatch.setattr("purerl.backends.transfer.sender.identity_of", lambda device: "cuda GPU-a")
    monkeypatch.setattr(purerl_receiver, "identity_of", lambda device: "cuda GPU-a")
    sender, errors = Sender("127.0.0.1", 1, timeout=60.0), list[str]()

    def receive(receiver: Receiver, number: int) -> None:
        with pytest.raises(RuntimeError, match="nccl: the trainer has cuda GPU-a") as error:
            receiver.receive(number, dict)
        errors.append(str(error.value))

    thread = in_thread(sender.address, receive)
    with pytest.raises(EngineError, match="a device of kind cuda for each process"):
        sender.send(filled(EQUAL, **TRANSPORTS["staged broadcast"]))
    thread.join(60.0)
    assert len(errors) == 1
    assert sender.group is None


def test_identity_of_the_cpu_is_that_of_the_host() -> None:
    assert identity_of(CPU) == identity_of(CPU)
    assert identity_of(CPU).startswith("cpu ")


def test_handle_opens_the_same_memory() -> None:
    data = torch.arange(100, dtype=torch.uint8)
    other = opened(handle_of(data), CPU)
    data[5] = 77
    assert torch.equal(other, data)


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.mark.gpu
@GPU
def test_weights_by_ipc_on_one_gpu(tmp_path: Path) -> None:
    """Several transfers to two processes, after which the device has no more memory in use than before."""
    device = torch.device("cuda", 0)
    used = "assert purerl_receiver.identity_of(torch.device('cuda:0'))\ndef data(*_):\n    raise RuntimeError('host')\n"
    program = used + "Receiver.data = data"
    large = {name: torch.randn(100, 1000, device=device) for name in "ab"}
    sender = Sender("127.0.0.1", 2, timeout=60.0)
    with receivers(2, tmp_path, device="cuda:0", program=program) as processes:
        before = torch.cuda.memory_allocated(device)
        for number in range(3):
            tensors = {name: value + number for name, value in large.items()}
            buckets = send(sender, processes, tensors, is_shared=True, device=device, size=2**20)
            for rank in (1, 2):
                check_received(tmp_path, number, rank, tensors)
            buckets.end_staging()
            del tensors, buckets
            torch.cuda.ipc_collect()
            assert torch.cuda.memory_allocated(device) == before


@pytest.mark.gpu
@GPU
def test_many_buckets_by_ipc_on_one_gpu(tmp_path: Path) -> None:
    """More than are staged. The receiver is killed, and the next one gets all of them from the host."""
    device = torch.device("cuda", 0)
    tensors = {f"{k}": torch.randn(1000, 100, device=device) for k in range(50)}
    sender = Sender("127.0.0.1", 1, timeout=60.0)
    with receivers(1, tmp_path, device="cuda:0") as processes:
        buckets = send(sender, processes, tensors, is_shared=True, device=device, size=10**6)
        check_received(tmp_path, 0, 1, tensors)
        processes[0].kill()
    buckets.end_staging()
    sender = Sender("127.0.0.1", 1, timeout=60.0)
    with receivers(1, tmp_path, device="cuda:0") as processes:
        send_address(processes, sender.address)
        sender.send(buckets)
        check_received(tmp_path, 0, 1, tensors)


@pytest.mark.gpu
@GPU
def test_digest_is_the_same_on_the_gpu() -> None:
    data = torch.randint(-(2**62), 2**62, (5_000_000,)).view(torch.uint8)
    digests = Digest(), Digest()
    for digest, device in zip(digests, ("cpu", "cuda"), strict=True):
        for part in data.split(8 * 1_000_000):
            digest.add(part.to(device))
    assert digests[0].hex() == digests[1].hex()


@pytest.mark.gpu
@TWO_GPUS
def test_weights_by_nccl_from_one_gpu_to_another(tmp_path: Path) -> None:
    """Several transfers; then the receiver is killed in one, which is an error in time, and another one joins."""
    device = torch.device("cuda", 0)
    large = {f"{k}": torch.randn(1000, 100, device=device) for k in range(20)}
    sender = Sender("127.0.0.1", 1, timeout=60.0)
    with receivers(1, tmp_path, device="cuda:1") as processes:
        for number in range(3):
            tensors = {name: value + number for name, value in large.items()}
            buckets = send(sender, processes, tensors, device=device, size=10**6)
            check_received(tmp_path, number, 1, tensors)
        send_address(processes, sender.address)
        threading.Timer(2.0, processes[0].send_signal, args=(signal.SIGKILL,)).start()
        threading.Timer(8.0, sender.cancel).start()
        waiting = WeightBuckets(2, device=device)
        threading.Timer(4.0, waiting.fill, args=(TensorWeights(large),), kwargs={"timeout": 0.0}).start()
        with pytest.raises(TransferError):
            sender.send(waiting)
    sender = Sender("127.0.0.1", 1, timeout=60.0)
    with receivers(1, tmp_path, device="cuda:1") as processes:
        send_address(processes, sender.address)
        sender.send(buckets)
        check_received(tmp_path, 0, 1, tensors)


@pytest.mark.gpu
@GPU
def test_nccl_on_one_gpu_is_refused(tmp_path: Path) -> None:
    sender = Sender("127.0.0.1", 1, timeout=60.0)
    with receivers(1, tmp_path, device="cuda:0") as processes:
        send_address(processes, sender.address)
        with pytest.raises(EngineError, match="set server.weight_transfer to cuda_ipc or shared_memory"):
            sender.send(filled(EQUAL, device=torch.device("cuda", 0)))
