"""The cost of a verified transfer of weights over a bare broadcast of the same bytes, between the same two processes.

    python -m benchmarks.transfer [--rounds 5] [--engine vllm=engines/vllm/bin/python]

The weights are those of a model with 0.5 billion parameters in bfloat16, with the shapes of Qwen2.5-0.5B. In each
round, one process sends them to another one:

    broadcast      one gloo broadcast of a tensor with as many bytes, in the group of the transfers
    gloo           a whole transfer: `WeightBuckets.fill`, which copies the weights, beside `Sender.send`, with digests
                   and reports
    shared memory  the same without a broadcast: the other process copies the buckets from shared memory

If there is a GPU, the weights are on it, and so are they in the other process: on the second GPU if there is one.

    cuda_ipc       with one GPU: the other process copies the buckets from the memory of the GPU
    nccl           with two GPUs: the buckets are broadcast from one to the other

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
from purerl.backends.transfer.engine.purerl_messages import Address
from purerl.backends.transfer.engine.purerl_receiver import Receiver, padded
from purerl.backends.transfer.sender import Sender
from purerl.backends.weights import TensorWeights
from purerl.plugins import find
from purerl.settings import Model
from purerl.system.devices.accelerator import current_device
from purerl.system.devices.kinds import BROADCAST_BETWEEN_DEVICES, HANDLES_OF_DEVICE

TOKEN = "the token of a server"  # noqa: S105 - of a server that does not exist
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


def receive(connection: Connection, addresses: dict[str, Address], size: int, device: str) -> None:
    """The other process: it receives what each message names, and answers when it has it."""
    receivers = {name: Receiver(address, 1, torch.device(device), token=TOKEN) for name, address in addresses.items()}
    for name, number in iter(connection.recv, None):
        receiver = receivers[name]
        if number == BROADCAST:
            connection.send("ready")
            receiver.data({"bytes": size, "path": None, "kind": "cpu"})
        else:
            receiver.receive(number, lambda stream: [name for name, _ in stream])
        connection.send("done")


class Benchmark:
    """The functions that are compared, with the process that receives, and whose group is joined."""

    def __init__(self, weights: TensorWeights, transports: dict[str, dict[str, Any]], device: str) -> None:
        self.weights, self.transports = weights, transports
        new = partial(Sender, "127.0.0.1", 1, token=TOKEN, is_local=True, timeout=120.0)
        self.senders = {name: new() for name in transports}
        self.copies: dict[str, WeightBuckets | None] = dict.fromkeys(transports)
        self.size = sum(padded(value.nbytes) for _, value in weights)
        self.data = torch.zeros(self.size, dtype=torch.uint8)
        context = get_context("spawn")
        self.connection, other = context.Pipe()
        addresses = {name: sender.address for name, sender in self.senders.items()}
        context.Process(target=receive, args=(other, addresses, self.size, device), daemon=True).start()
        for name in transports:
            self.transfer(name)  # joins the group, and allocates the memory

    def broadcast(self) -> None:
        self.connection.send(("gloo", BROADCAST))
        self.connection.recv()
        self.senders["gloo"].group.broadcast(self.data)
        self.connection.recv()

    def transfer(self, name: str) -> None:
        sender = self.senders[name]
        buckets = WeightBuckets(1, readers=1, old=self.copies[name], **self.transports[name])
        self.copies[name] = buckets
        filling = Thread(target=buckets.fill, args=(self.weights,), kwargs={"timeout": 120.0})
        filling.start()
        self.connection.send((name, sender.address.number))
        buckets.attach()
        sender.send(buckets)
        self.connection.recv()
        filling.join()
        buckets.end_staging()


def transports_here() -> tuple[dict[str, dict[str, Any]], str]:
    """The arguments of `WeightBuckets` for each transport of this computer, and the device of the other process."""
    names: dict[str, dict[str, Any]] = {"gloo": {}, "shared memory": {"is_shared": True}}
    device, count = current_device(), torch.accelerator.device_count()
    if count == 1:
        return {**names, HANDLES_OF_DEVICE: {"is_shared": True, "device": device}}, str(device)
    if count > 1:
        return {**names, BROADCAST_BETWEEN_DEVICES: {"device": device}}, f"{device.type}:{(device.index + 1) % count}"
    return names, "cpu"


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
    transports, device = transports_here()
    own = current_device()
    benchmark = Benchmark(TensorWeights({name: value.to(own) for name, value in weights}), transports, device)
    functions: dict[str, Callable[[], object]] = {
        "broadcast": benchmark.broadcast,
        **{name: partial(benchmark.transfer, name) for name in transports},
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
