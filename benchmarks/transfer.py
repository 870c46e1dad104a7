"""The cost of a verified transfer of weights over a bare broadcast of the same bytes, between the same two processes.

    python -m benchmarks.transfer [--rounds 5]

The weights are those of a model with 0.5 billion parameters in bfloat16: 24 layers with the shapes of Qwen2.5-0.5B. In
each round, one process sends them to another one:

    broadcast  one gloo broadcast of a tensor with as many bytes, in the group of the transfers
    transfer   `Sender.send`, with digests and reports, while `WeightBuckets.fill` copies the weights
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

import torch

from purerl.backends.transfer.buckets import WeightBuckets
from purerl.backends.transfer.engine.purerl_receiver import Address, Receiver
from purerl.backends.transfer.sender import Sender
from purerl.backends.weights import TensorWeights

LAYERS, HIDDEN, INTERMEDIATE, KEYS, VOCABULARY = 24, 896, 4864, 128, 151_936
BROADCAST = -1  # a message to the other process; the others are numbers of transfers


def random_weights() -> TensorWeights:
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
    """The other process: it receives what each message names, and answers when it has it."""
    receiver = Receiver(address, 1)
    for number in iter(connection.recv, None):
        if number == BROADCAST:
            connection.send("ready")
            receiver.data(size)
        else:
            receiver.receive(number, lambda stream: [name for name, _ in stream])
        connection.send("done")


class Benchmark:
    """The functions that are compared, with the process that receives, and whose group is joined."""

    def __init__(self, weights: TensorWeights) -> None:
        self.weights, self.sender = weights, Sender("127.0.0.1", 1, timeout=120.0)
        self.filled, self.copy = WeightBuckets(0), WeightBuckets(1)
        for buckets in (self.filled, self.copy):
            buckets.fill(weights, timeout=0.0)
        self.size = sum(bucket.header["bytes"] for bucket in self.filled.read(1.0))
        self.data = torch.zeros(self.size, dtype=torch.uint8)
        context = get_context("spawn")
        self.connection, other = context.Pipe()
        arguments = (other, self.sender.address, self.size)
        context.Process(target=receive, args=arguments, daemon=True).start()
        self.send(self.filled)  # joins the group

    def broadcast(self) -> None:
        self.connection.send(BROADCAST)
        self.connection.recv()
        self.sender.group.broadcast(self.data).wait()
        self.connection.recv()

    def transfer(self) -> None:
        self.copy = WeightBuckets(1, old=self.copy)
        filling = Thread(target=self.copy.fill, args=(self.weights,), kwargs={"timeout": 0.0})
        filling.start()
        self.send(self.copy)
        filling.join()

    def send(self, buckets: WeightBuckets) -> None:
        self.connection.send(self.sender.address.number)
        self.sender.send(buckets)
        self.connection.recv()


def measure(functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each round."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append(1e3 * (time.perf_counter() - start))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    benchmark = Benchmark(random_weights())
    functions: dict[str, Callable[[], object]] = {
        "broadcast": benchmark.broadcast,
        "transfer": benchmark.transfer,
        "send": lambda: benchmark.send(benchmark.filled),
    }
    times = measure(functions, options.rounds)
    benchmark.connection.send(None)
    print(f"{benchmark.size / 2**20:.0f} MiB")
    base = times["broadcast"]
    for name, values in times.items():
        by_round = ", ".join(f"{value / own:.2f}" for value, own in zip(values, base, strict=True))
        print(f"{name:12}{median(values):8.0f} ms {median(values) / median(base):6.2f}  {by_round}")


if __name__ == "__main__":
    main()
