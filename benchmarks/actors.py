"""The costs of Ray actors: calls of a trainer, and weights that go from a trainer to a generator.

    python -m benchmarks.actors [--rounds 5] [--rows 1024] [--length 1024] [--part 16]

Calls: two actors with engines that compute nothing score a batch and take a step. So the time is Ray's alone: packing
the batch, the object store, sending objective and counts, the result. Beside it is the step of an HF trainer in this
process, with the rows of the batch divided by `--part`, and its time multiplied by it. The model is a Qwen3 model with
4 layers, hidden size 128 and 64 tokens.

Weights: an actor sends 0.5 billion parameters in bfloat16 to another actor, which reads each tensor and drops it.
Beside it is one gloo broadcast of as many bytes between two processes.

One thread for each process. The table has the median of the rounds, and ratios of medians.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import distributed as dist

from purerl.algos import grpo
from purerl.algos.algebra import Counts, Objective, compute_advantages, prepare_step
from purerl.backends.hf import trainer as hf
from purerl.backends.weights import TensorWeights
from purerl.batch import collate, with_fields
from purerl.placement.actors.engines import ray_engines
from purerl.placement.settings import Actors, Placement
from purerl.protocols import Capabilities, Metrics, Weights
from purerl.settings import Model
from purerl.system.stores import listening_store
from purerl.types import TensorDict

VOCABULARY, HIDDEN, LAYERS = 64, 128, 4
NUM_TENSORS, TENSOR = 240, 2**21  # 0.5 billion parameters


class NoTrainer:
    """A trainer that computes nothing."""

    capabilities = Capabilities(outputs=frozenset({"logp"}))

    def __init__(self) -> None:
        self.tensor = torch.ones(TENSOR, dtype=torch.bfloat16)

    def score(self, batch: TensorDict, outputs: Sequence[str]) -> TensorDict:
        return batch.select("rollout_logp").rename_key_("rollout_logp", outputs[0])

    def step(self, batch: TensorDict, objective: Objective, counts: Mapping[str, Counts]) -> Metrics:
        return {}

    def weights(self) -> TensorWeights:
        return TensorWeights(dict.fromkeys(map(str, range(NUM_TENSORS)), self.tensor))

    def close(self) -> None:
        """Nothing is open."""


class NoGenerator:
    """A generator that reads weights, and samples nothing."""

    capabilities = Capabilities()

    def load_weights(self, weights: Weights, *, version: int) -> None:
        for _ in weights:
            pass

    def close(self) -> None:
        """Nothing is open."""


def make_batch(rows: int, length: int) -> TensorDict:
    """A batch of groups of 8 rows, half prompt and half completion, with its advantages."""
    draw = torch.Generator().manual_seed(0)
    action = torch.arange(length) >= length // 2
    fields = [
        {
            "tokens": torch.randint(0, VOCABULARY, (length,), generator=draw).tolist(),
            "action": action.tolist(),
            "row": row,
            "group": row // 8,
            "temperature": 1.0,
            "reward": [0.0] * (length - 1) + [float(row % 3)],
            "rollout_logp": (-torch.rand(length, generator=draw) * action).tolist(),
            "version": [0] * length,
        }
        for row in range(rows)
    ]
    batch = collate(fields)
    batch = with_fields(batch, old_logp=batch["rollout_logp"])
    algorithm = grpo.algorithm(grpo.Config())
    return compute_advantages(algorithm, algorithm.advantage.init(), batch)[1]


def objective_of_step() -> Objective:
    return grpo.algorithm(grpo.Config()).objectives[0]


def seconds(function: Callable[[], object], rounds: int) -> float:
    """The median time of a call, after one that is not counted."""
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return median(times[1:])


def hf_step(folder: Path, batch: TensorDict) -> Callable[[], object]:
    """The scoring pass and the step of an HF trainer in this process."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = dict(hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=4)
    config = Qwen3Config(vocab_size=VOCABULARY, intermediate_size=4 * HIDDEN, head_dim=HIDDEN // 4, **shape)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    model, options = Model(str(folder)), {"role": "policy", "outputs": ("logp",), "updates": 10, "seed": 0}
    trainer = hf.build(hf.Config(lr=1e-4), model=model, **options)
    return calls(trainer, batch)


def calls(trainer: Any, batch: TensorDict) -> Callable[[], object]:
    objective = objective_of_step()

    def call() -> None:
        trainer.score(batch, ("logp",))
        trainer.step(*prepared(objective, batch))

    return call


def prepared(objective: Objective, batch: TensorDict) -> tuple[TensorDict, Objective, Mapping[str, Counts]]:
    part, counts = prepare_step(objective, batch)
    return part, objective, counts


def receive(connection: Connection, port: int) -> None:
    """The other process of the broadcasts."""
    join(1, port)
    data = torch.zeros(2 * NUM_TENSORS * TENSOR, dtype=torch.uint8)
    with suppress(EOFError):
        while connection.recv():
            dist.broadcast(data, 0)
            connection.send(None)


def join(rank: int, port: int) -> None:
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)


def broadcast() -> Callable[[], object]:
    """A broadcast of as many bytes, between this process and another one."""
    store = listening_store("127.0.0.1", 0, timeout=60.0)
    context = get_context("spawn")
    connection, other = context.Pipe()
    context.Process(target=receive, args=(other, store.port), daemon=True).start()
    join(0, store.port)
    data = torch.zeros(2 * NUM_TENSORS * TENSOR, dtype=torch.uint8)

    def call(keep: object = store) -> None:
        connection.send(keep is not None)
        dist.broadcast(data, 0)
        connection.recv()

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rounds", 5), ("rows", 1024), ("length", 1024), ("part", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    batch = make_batch(options.rows, options.length)
    placement = Placement(kind="ray", trainers=Actors(count=2), roles={"sender": Actors()})
    with tempfile.TemporaryDirectory() as name, ray_engines(placement, Path(name)) as engines:
        folder, part = Path(name), options.part
        ray = seconds(calls(engines.trainer("policy", NoTrainer), batch), options.rounds)
        step = part * seconds(hf_step(folder / "model", batch[: options.rows // part]), 1)
        print(f"score and step, {options.rows} x {options.length}: Ray {1e3 * ray:.0f} ms, HF {step:.1f} s, ", end="")
        print(f"{100 * ray / step:.2f} %")
        sender, generator = engines.trainer("sender", NoTrainer), engines.generator("generator", NoGenerator)
        transfer = seconds(partial(generator.load_weights, sender.weights(), version=1), options.rounds)
        bare = seconds(broadcast(), options.rounds)
        size = 2 * NUM_TENSORS * TENSOR / 2**20
        print(f"weights, {size:.0f} MiB: {1e3 * transfer:.0f} ms, broadcast {1e3 * bare:.0f} ms, {transfer / bare:.2f}")


if __name__ == "__main__":
    main()
