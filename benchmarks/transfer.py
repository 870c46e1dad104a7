"""The cost of a verified transfer of weights over a bare broadcast of the same bytes, between the same two processes.

    python -m benchmarks.transfer [--rounds 5] [--engine vllm=engines/vllm/bin/python]

The weights are those of a model with 0.5 billion parameters in bfloat16, with the shapes of Qwen2.5-0.5B. In each
round, one process sends them to another one:

    broadcast      one gloo broadcast of a tensor with as many bytes, in the group of the transfers
    gloo           a whole transfer: `WeightBuckets.fill`, which copies the weights, beside `Sender.send`, with digests
                   and reports
    shared memory  the same without a broadcast: the other process copies the buckets from shared memory

Nothing is loaded into an engine. With `--engine`, a server of this engine loads the weights too, on the CPU, by each
`weight_transfer`, one after the other. Its time beyond that of the transfer is what the engine needs to load them.

The table has the median of the rounds in milliseconds, and the ratio to `broadcast`, of the medians and in each round.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

import torch

from benchmarks.serving import ENVIRONMENT, write_tokenizer
from purerl.backends.serving.settings import ServerSettings
from purerl.backends.transfer.buckets import WeightBuckets
from purerl.backends.transfer.engine.purerl_receiver import Address, Receiver
from purerl.backends.transfer.sender import Sender
from purerl.backends.weights import TensorWeights
from purerl.plugins import find
from purerl.settings import Model

BROADCAST = -1  # a message to the other process; the others are numbers of transfers


def make_model() -> Any:
    """The model, with random weights."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = dict(hidden_size=896, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2)
    shape |= dict(intermediate_size=4864, vocab_size=151_936, max_position_embeddings=512)
    with torch.device("meta"):
        model = Qwen2ForCausalLM(Qwen2Config(**shape, tie_word_embeddings=True)).to(torch.bfloat16)
    model.to_empty(device="cpu").tie_weights()
    for value in model.parameters():
        torch.nn.init.normal_(value, std=0.02)
    return model


def receive(connection: Connection, address: Address, size: int) -> None:
    """The other process: it receives what each message names, and answers when it has it."""
    receiver = Receiver(address, 1)
    for number in iter(connection.recv, None):
        if number == BROADCAST:
            connection.send("ready")
            receiver.data(size, None)
        else:
            receiver.receive(number, lambda stream: [name for name, _ in stream])
        connection.send("done")


class Benchmark:
    """The functions that are compared, with the process that receives, and whose group is joined."""

    def __init__(self, weights: TensorWeights) -> None:
        self.weights, self.sender = weights, Sender("127.0.0.1", 1, timeout=120.0)
        self.copies = {is_shared: WeightBuckets(1, is_shared=is_shared) for is_shared in (False, True)}
        for buckets in self.copies.values():
            buckets.fill(weights, timeout=0.0)
        self.size = sum(bucket.header["bytes"] for bucket in self.copies[False].read(1.0))
        self.data = torch.zeros(self.size, dtype=torch.uint8)
        context = get_context("spawn")
        self.connection, other = context.Pipe()
        arguments = (other, self.sender.address, self.size)
        context.Process(target=receive, args=arguments, daemon=True).start()
        self.transfer(is_shared=False)  # joins the group

    def broadcast(self) -> None:
        self.connection.send(BROADCAST)
        self.connection.recv()
        self.sender.group.broadcast(self.data).wait()
        self.connection.recv()

    def transfer(self, *, is_shared: bool) -> None:
        buckets = WeightBuckets(1, is_shared=is_shared, old=self.copies[is_shared])
        self.copies[is_shared] = buckets
        filling = Thread(target=buckets.fill, args=(self.weights,), kwargs={"timeout": 0.0})
        filling.start()
        self.connection.send(self.sender.address.number)
        self.sender.send(buckets)
        self.connection.recv()
        filling.join()


def measure_engine(engine: str, model: Any, weights: TensorWeights, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each round in which a server of `engine`, kind=PYTHON, loads `weights`, by transport."""
    kind, _, python = engine.partition("=")
    backend, times = find("generator", kind), {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        model.save_pretrained(Path(folder, "model"))
        write_tokenizer(Path(folder, "model"))

        def build(**settings: Any) -> Any:
            config = backend.Config(server=ServerSettings(**settings), max_num_seqs=8)
            return backend.build(config, model=Model(str(Path(folder, "model")), dtype="bfloat16"), seed=0)

        owner = build(python=python or None, environment=ENVIRONMENT, logs=folder, device="cpu")
        stack.callback(owner.close)
        for name in ("gloo", "shared_memory", "directory"):
            generator = build(urls=(owner.servers[0].url,), weight_transfer=name)
            stack.callback(generator.close)
            generator.load_weights(weights, version=0)  # connects
            load = partial(generator.load_weights, weights, version=1)
            times |= measure({f"{kind}, {name.replace('_', ' ')}": load}, rounds)
    return times


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
    parser.add_argument("--engine", help="vllm=PYTHON or sglang=PYTHON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = make_model()
    weights = TensorWeights({name: value.detach() for name, value in model.named_parameters()})
    benchmark = Benchmark(weights)
    functions: dict[str, Callable[[], object]] = {
        "broadcast": benchmark.broadcast,
        "gloo": partial(benchmark.transfer, is_shared=False),
        "shared memory": partial(benchmark.transfer, is_shared=True),
    }
    times = measure(functions, options.rounds)
    if options.engine:
        times |= measure_engine(options.engine, model, weights, options.rounds)
    benchmark.connection.send(None)
    print(f"{benchmark.size / 2**20:.0f} MiB")
    base = times["broadcast"]
    for name, values in times.items():
        by_round = ", ".join(f"{value / own:.2f}" for value, own in zip(values, base, strict=True))
        print(f"{name:24}{median(values):8.0f} ms {median(values) / median(base):6.2f}  {by_round}")


if __name__ == "__main__":
    main()
