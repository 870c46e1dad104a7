"""Senders and receivers of weights for tests: the receivers are real processes, or threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from purerl.backends.transfer import engine
from purerl.backends.transfer.buckets import WeightBuckets
from purerl.backends.transfer.engine.purerl_messages import Address
from purerl.backends.transfer.engine.purerl_receiver import Receiver
from purerl.backends.transfer.sender import Sender
from purerl.backends.weights import TensorWeights
from tests.forks import TORCH

__all__ = [
    "CPU",
    "EQUAL",
    "HANDLES",
    "SAYS_THAT_IT_WAITS",
    "TENSORS",
    "TRANSPORTS",
    "check_received",
    "filled",
    "in_thread",
    "receivers",
    "send",
    "send_address",
    "wait_for_file",
]

TENSORS = {
    "a": torch.randn(3, 5),
    "b": torch.randn(7).bfloat16(),
    "c": torch.randn(1000, 100, dtype=torch.float64),
    "d": torch.arange(3),
    "e": torch.zeros(0, 4),
    "f": torch.tensor(2.0),
}

EQUAL = {name: torch.randn(25) for name in "abcdefgh"}
"""Each takes 112 bytes of a bucket."""

CPU = torch.device("cpu")
TRANSPORTS: dict[str, dict[str, Any]] = {
    "gloo": {},
    "shared_memory": {"is_shared": True},
    "handles": {"is_shared": True, "device": CPU},
    "staged broadcast": {"device": CPU},
}
"""Arguments of `WeightBuckets`: those of cuda_ipc and nccl are the last two, with the CPU in place of a GPU."""

HANDLES = TRANSPORTS["handles"]
TOKEN = "the token of a server"


def new_sender(receivers: int, *, timeout: float, is_local: bool = True) -> Sender:
    """A sender to processes of this host. With `is_local` they find it in a folder, and otherwise at a port."""
    return Sender("127.0.0.1", receivers, token=TOKEN, is_local=is_local, timeout=timeout)


RECEIVER = """
import json, sys, time, torch
assert "purerl" not in sys.modules and "tensordict" not in sys.modules
import purerl_receiver
from purerl_receiver import Address, Receiver
rank, path, device, program = int(sys.argv[1]), *sys.argv[2:]

def load(stream):
    tensors = {name: value.cpu().clone() for name, value in stream}
    torch.save(tensors, f"{path}/{address.number}-{rank}.pt")

exec(program)
receiver = None
for line in sys.stdin:
    address = Address(*json.loads(line))
    receiver = receiver or Receiver(address, rank, torch.device(device))
    receiver.receive(address.number, load)
"""

SAYS_THAT_IT_WAITS = """
old = Receiver._bucket
def wait(self, bucket):
    open(f"{path}/waits-{address.number}", "w").close()
    return old(self, bucket)
Receiver._bucket = wait
"""
"""A program of a receiver: a file in its folder says that it waits for a bucket of this transfer."""


def wait_for_file(path: Path) -> None:
    end = time.monotonic() + 60.0
    while not path.exists():
        assert time.monotonic() < end, f"there is no {path}"
        time.sleep(0.01)


@contextmanager
def receivers(
    number: int, folder: Path, *, device: str = "cpu", program: str = "", are_started: bool = False
) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that have only torch and the file of the receiver, as in the environment of an engine.

    They run `program` first, which may replace functions. They are forked if they use the CPU, except with
    `are_started`.
    """
    create = subprocess.Popen if are_started or device != "cpu" else TORCH.Popen
    own = {"PYTHONPATH": str(Path(engine.__file__).parent), "OMP_NUM_THREADS": "1", "PURERL_SERVER_TOKEN": TOKEN}
    environment = {**os.environ, **own}
    processes = [
        create(
            [sys.executable, "-c", RECEIVER, str(1 + k), str(folder), device, program],
            stdin=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=folder,
        )
        for k in range(number)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def send_address(processes: list[subprocess.Popen[str]], address: Address) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(json.dumps(address) + "\n")
        process.stdin.flush()


def send(
    sender: Sender, processes: list[subprocess.Popen[str]], tensors: dict[str, torch.Tensor], **arguments: Any
) -> WeightBuckets:
    """Send `tensors` to `processes` while buckets are being filled; `arguments` are those of `WeightBuckets`."""
    buckets = WeightBuckets(1, **{"readers": 1, "size": 1000, **arguments})
    filling = threading.Thread(target=buckets.fill, args=(TensorWeights(tensors),), kwargs={"timeout": 60.0})
    filling.start()
    send_address(processes, sender.address)
    buckets.attach()
    sender.send(buckets)
    filling.join()
    return buckets


def check_received(folder: Path, number: int, rank: int, tensors: dict[str, torch.Tensor]) -> None:
    """Compare what the process `rank` has received in transfer `number` with `tensors`."""
    received = torch.load(folder / f"{number}-{rank}.pt")
    assert list(received) == list(tensors)
    for name, value in tensors.items():
        torch.testing.assert_close(received[name], value.cpu(), rtol=0, atol=0)


def filled(tensors: dict[str, torch.Tensor] = TENSORS, **arguments: Any) -> WeightBuckets:
    buckets = WeightBuckets(1, **{"size": 10_000, "readers": 1, **arguments})
    buckets.fill(TensorWeights(tensors), timeout=0.0)
    return buckets


def in_thread(address: Address, receive: Callable[[Receiver, int], None]) -> threading.Thread:
    thread = threading.Thread(target=receive, args=(Receiver(address, 1, token=TOKEN), address.number), daemon=True)
    thread.start()
    return thread
