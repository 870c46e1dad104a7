"""Buckets on a device: where they are, and until when."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from purerl.backends.transfer.buckets import WeightBuckets
from purerl.backends.transfer.engine.purerl_messages import Handle
from purerl.backends.transfer.engine.purerl_receiver import Receiver
from purerl.backends.transfer.sender import TransferError
from purerl.backends.transfer.staging import Staging
from purerl.backends.weights import TensorWeights
from tests.transfer.processes import (
    CPU,
    EQUAL,
    HANDLES,
    TENSORS,
    TOKEN,
    new_sender,
)


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


class Slow(Receiver):
    """Reads the first bucket from the device only after all buckets have been written."""

    has_begun, may_read = threading.Event(), threading.Event()

    def _read(self, handle: Handle, size: int) -> Tensor | None:
        self.has_begun.set()
        self.may_read.wait(60.0)
        return super()._read(handle, size)


class Early(Slow):
    """Says that it has read before it reads."""

    def _bucket(self, bucket: int) -> tuple[dict[str, Any], Tensor | None]:
        self._messages.set(f"read/1/{bucket}", None)
        return super()._bucket(bucket)


def send_to_slow_receiver(receiver_class: type[Slow] = Slow) -> dict[str, Tensor]:
    """The bytes of a receiver that reads while the rest is written."""
    Slow.has_begun, Slow.may_read = threading.Event(), threading.Event()
    sender, received = new_sender(1, timeout=60.0), dict[str, Tensor]()

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
    receiver = receiver_class(sender.address, 1, token=TOKEN)
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
