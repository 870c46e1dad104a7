"""Weights that do not pass through the host: by handles of memory of the trainer's device, and by broadcast from it.

The same code runs here with the memory of the CPU in place of that of a device; test_gpu.py runs it on devices.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import threading
import time
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
    Handle,
    Receiver,
    TransferGroup,
    handle_of,
    identity_of,
    opened,
)
from purerl.backends.transfer.sender import TransferError, _problem_of
from purerl.backends.weights import TensorWeights
from purerl.errors import EngineError
from tests.transfer.processes import (
    CPU,
    EQUAL,
    HANDLES,
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

devices = pytest.mark.parametrize("transport", [HANDLES, TRANSPORTS["staged broadcast"]], ids=["handles", "broadcast"])


class FromDevice(Receiver):
    """Receives through handles alone."""

    def data(self, header: dict[str, Any]) -> Tensor:
        raise AssertionError("it has passed through the host")


def test_weights_do_not_pass_through_the_host() -> None:
    sender, received = new_sender(1, timeout=60.0), dict[str, Tensor]()
    receiver = FromDevice(sender.address, 1, token=TOKEN)
    for number in range(3):
        tensors = {name: value + number for name, value in EQUAL.items()}
        thread = threading.Thread(target=receiver.receive, args=(number, received.update), daemon=True)
        thread.start()
        sender.send(filled(tensors, size=500, **HANDLES))
        thread.join(60.0)
        torch.testing.assert_close(received, tensors, rtol=0, atol=0)


def test_two_servers_read_the_same_buffers() -> None:
    senders = [new_sender(1, timeout=60.0) for _ in range(2)]
    received: list[dict[str, Tensor]] = [{}, {}]
    buckets = filled(EQUAL, size=500, **{**HANDLES, "readers": 2})
    threads = [
        threading.Thread(target=FromDevice(sender.address, 1, token=TOKEN).receive, args=(0, own.update), daemon=True)
        for sender, own in zip(senders, received, strict=True)
    ]
    threads += [threading.Thread(target=sender.send, args=(buckets,), daemon=True) for sender in senders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    for own in received:
        torch.testing.assert_close(own, EQUAL, rtol=0, atol=0)


@devices
def test_receiver_that_is_killed_in_the_middle_and_one_that_replaces_it(
    tmp_path: Path, transport: dict[str, Any]
) -> None:
    """`fill` does not wait for it, and the next one gets the copy of the host."""
    stall = "def load(stream):\n    next(stream)\n    open(f'{path}/loads', 'w').close()\n    time.sleep(600)\n"
    tensors = {f"{name}{k}": value for k in range(20) for name, value in TENSORS.items()}
    buckets = WeightBuckets(1, size=1000, readers=1, **transport)
    sender = new_sender(1, timeout=100.0)
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
        wait_for_file(tmp_path / "loads")
        processes[0].send_signal(signal.SIGKILL)
        sender.cancel()
        sending.join(50.0)
        assert len(errors) == 1
    buckets.end_staging()
    sender = new_sender(1, timeout=60.0)
    with receivers(1, tmp_path) as processes:
        send_address(processes, sender.address)
        sender.send(buckets)
        check_received(tmp_path, 0, 1, tensors)


@pytest.mark.parametrize("transport", [{}, TRANSPORTS["staged broadcast"]], ids=["gloo", "staged broadcast"])
def test_broadcast_to_a_process_that_is_stopped_is_given_up_at_once(tmp_path: Path, transport: dict[str, Any]) -> None:
    """Long before the timeout, and although it has joined the group."""
    sender, buckets = new_sender(1, timeout=100.0), WeightBuckets(2, **transport)
    times = []

    def stop_and_cancel(process: subprocess.Popen[str]) -> None:
        wait_for_file(tmp_path / "waits-1")
        process.send_signal(signal.SIGSTOP)
        buckets.fill(TensorWeights({"large": torch.zeros(2**24)}), timeout=0.0)
        while not sender._open_store("1").check(["bucket/0"]):
            time.sleep(0.02)
        time.sleep(0.5)
        times.append(time.monotonic())
        sender.cancel()

    with receivers(1, tmp_path, program=SAYS_THAT_IT_WAITS) as processes:
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
    sender = new_sender(1, timeout=60.0)
    group = TransferGroup(sender._open_store("group"), sender.address, 0, CPU, TOKEN)
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
    monkeypatch.setenv("PURERL_SERVER_TOKEN", TOKEN)
    groups = []
    for _ in range(2):
        sender = new_sender(1, timeout=60.0)
        arguments = (sender.address, 1, CPU, dict)
        thread = threading.Thread(target=purerl_receiver.receive, args=arguments, daemon=True)
        thread.start()
        sender.send(filled(EQUAL))
        thread.join(60.0)
        groups += [receiver._group for receiver in purerl_receiver._RECEIVERS.values()]
    assert [group._is_aborted.is_set() for group in groups] == [True, False]


def test_receiver_on_another_device_reads_the_memory_of_the_host(tmp_path: Path) -> None:
    elsewhere = "purerl_receiver.identity_of = lambda device: 'cpu elsewhere'\npurerl_receiver.opened = None"
    sender = new_sender(1, timeout=60.0)
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
    sender = new_sender(1, timeout=60.0)
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
    sender = new_sender(1, timeout=60.0)
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
    sender = new_sender(2, timeout=60.0)
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
    sender, errors = new_sender(1, timeout=60.0), list[str]()

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
