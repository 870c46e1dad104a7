"""The cost of a verified transfer of weights over a bare broadcast of the same bytes, between the same two processes.

    python -m benchmarks.transfer [--rounds 5]

The weights are those of a model with 0.5 billion parameters in bfloat16: 24 layers with the shapes of Qwen2.5-0.5B. In
each round, one process sends them to another one:

    broadcast  one gloo broadcast of a tensor with as many bytes, in the group that transfers use too
    transfer   `WeightBuckets.fill`, which copies the weights, beside `Sender.send`, with digests and reports
    send       only `Sender.send`, of buckets that have been filled

Nothing is loaded into an engine. The table has the median of the rounds in milliseconds, and the ratio to `broadcast`,
of the medians and in each round.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median
from threading import Thread
from typing import Any

import torch

from purerl.backends.transfer.buckets import WeightBuckets
from purerl.backends.transfer.engine.purerl_receiver import Address, Receiver
from purerl.backends.transfer.sender import Sender
from purerl.backends.weights import TensorWeights

LAYERS, HIDDEN, INTERMEDIATE, KEYS, VOCABULARY = 24, 896, 4864, 128, 151_936


def model() -> TensorWeights:
    """Weights with the names and shapes of the model."""
    shapes = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        own = {
            **{f"self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qo"},
            **{f"self_attn.{name}_proj.weight": (KEYS, HIDDEN) for name in "kv"},
            **{f"mlp.{name}_proj.weight": (INTERMEDIATE, HIDDEN) for name in ("gate", "up")},
            "mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
            **{f"{name}_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")},
        }
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in own.items()}
    return TensorWeights({name: torch.randn(shape, dtype=torch.bfloat16) for name, shape in shapes.items()})


def receive(connection: Connection, address: Address, size: int) -> None:
    """The other process: it takes what it is told to expect."""
    receiver = Receiver(address, 1)
    for what, number in iter(connection.recv, None):
        if what == "broadcast":
            connection.send("ready")
            receiver.data(size)
        else:
            receiver.receive(number, lambda stream: [name for name, _ in stream])
        connection.send("done")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    weights, sender = model(), Sender("127.0.0.1", 1, timeout=120.0)
    filled = WeightBuckets(0)
    filled.fill(weights, timeout=0.0)
    size = sum(bucket.header["bytes"] for bucket in filled.read(1.0))
    data = torch.zeros(size, dtype=torch.uint8)
    connection, other = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=receive, args=(other, sender.address, size), daemon=True)
    process.start()

    def transfer(buckets: WeightBuckets) -> None:
        connection.send(("transfer", sender.address.number))
        sender.send(buckets)
        connection.recv()

    copies = [WeightBuckets(1)]
    copies[0].fill(weights, timeout=0.0)

    def whole() -> None:
        buckets = WeightBuckets(1, old=copies.pop())
        copies.append(buckets)
        filling = Thread(target=buckets.fill, args=(weights,), kwargs={"timeout": 0.0})
        filling.start()
        transfer(buckets)
        filling.join()

    def broadcast() -> None:
        connection.send(("broadcast", 0))
        connection.recv()
        if sender.group is not None:  # it is joined
            sender.group.broadcast(data).wait()
        connection.recv()

    transfer(filled)  # joins the group
    ways: dict[str, Callable[[], Any]] = {"broadcast": broadcast, "transfer": whole, "send": lambda: transfer(filled)}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - start)
    connection.send(None)
    print(f"{size / 2**20:.0f} MiB")
    for name, values in times.items():
        ratios = [value / base for value, base in zip(values, times["broadcast"], strict=True)]
        of_rounds = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(
            f"{name:12}{1e3 * median(values):8.0f} ms {median(values) / median(times['broadcast']):6.2f}  {of_rounds}"
        )


if __name__ == "__main__":
    main()
