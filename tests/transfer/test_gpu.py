"""Weights from GPU to GPU, between real processes."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
import torch

from purerl.backends.transfer.buckets import WeightBuckets
from purerl.backends.transfer.engine.purerl_receiver import Digest
from purerl.backends.transfer.sender import TransferError
from purerl.backends.weights import TensorWeights
from purerl.errors import EngineError
from tests.transfer.processes import (
    EQUAL,
    check_received,
    filled,
    new_sender,
    receivers,
    send,
    send_address,
)

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def check_next_receiver(buckets: WeightBuckets, tensors: dict[str, torch.Tensor], folder: Path, *, device: str) -> None:
    """Another receiver, in the place of one that was killed, gets all of `buckets`."""
    sender = new_sender(1, timeout=60.0)
    with receivers(1, folder, device=device) as processes:
        send_address(processes, sender.address)
        sender.send(buckets)
        check_received(folder, 0, 1, tensors)


@pytest.mark.gpu
@GPU
def test_weights_by_ipc_on_one_gpu(tmp_path: Path) -> None:
    """Several transfers to two processes, after which the device has no more memory in use than before."""
    device = torch.device("cuda", 0)
    used = "assert purerl_receiver.identity_of(torch.device('cuda:0'))\ndef data(*_):\n    raise RuntimeError('host')\n"
    program = used + "Receiver.data = data"
    large = {name: torch.randn(100, 1000, device=device) for name in "ab"}
    sender = new_sender(2, timeout=60.0)
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
    sender = new_sender(1, timeout=60.0)
    with receivers(1, tmp_path, device="cuda:0") as processes:
        buckets = send(sender, processes, tensors, is_shared=True, device=device, size=10**6)
        check_received(tmp_path, 0, 1, tensors)
        processes[0].kill()
    buckets.end_staging()
    check_next_receiver(buckets, tensors, tmp_path, device="cuda:0")


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
    sender = new_sender(1, timeout=60.0)
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
    check_next_receiver(buckets, tensors, tmp_path, device="cuda:1")


@pytest.mark.gpu
@GPU
def test_nccl_on_one_gpu_is_refused(tmp_path: Path) -> None:
    sender = new_sender(1, timeout=60.0)
    with receivers(1, tmp_path, device="cuda:0") as processes:
        send_address(processes, sender.address)
        with pytest.raises(EngineError, match="set server.weight_transfer to cuda_ipc or shared_memory"):
            sender.send(filled(EQUAL, device=torch.device("cuda", 0)))
