"""One optimizer step of the trainer megatron, and bare calls of Megatron-core that do the same work, on one rank.

    python -m benchmarks.megatron_step [--rounds 15]

It needs megatron-core, and runs in one thread of a CPU with the replacement of torch.cuda that the tests have. The rows
are half of those of "many rows" in benchmarks/packing.py, in the micro-batches of the trainer. Each way has a model of
its own with the same weights:

    trainer  `MegatronTrainer.step`: checks and divides a batch, and computes the loss and the metrics of an objective
    bare     Megatron's schedule, sums of gradients, clipping and optimizer; micro-batches and the indices of their
             action tokens, which were made before; `token_outputs` of the trainer; and a loss in two lines

In each round both are measured, in alternating order, and their gradient norms have to be equal. What is printed is CPU
time: the median and the best of each, and the median over the rounds of their difference, as a part of the trainer's
step. The difference of two steps has a noise of several percent. So there is also the time in purerl's own functions,
with the operations of torch that they call, in each step of the trainer:

    own code = step - (schedule - own part of it) - optimizer
    own part of the schedule = (loss - token_outputs) + (hidden states - module)

Clipping counts as own code, although the bare step has to clip too.

Nine rounds on an otherwise idle AMD EPYC: median and best are 2.077 s and 1.861 s of the trainer, and 2.047 s and
1.947 s of the bare step. The difference is -0.2 % (rounds: -8.4 % to 12.7 %). The own code is 0.6 % of a step (twelve
rounds beside other work: 0.5 % to 0.6 %).
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest import mock

import torch
from tensordict import TensorDict
from torch import Tensor

from benchmarks.packing import LOADS, OBJECTIVE, make_batch, write_model
from purerl.algos.algebra import prepare_step
from purerl.backends.megatron import schedule as own_schedule
from purerl.backends.megatron.engine import MegatronTrainer
from purerl.backends.megatron.optimizer import parts_of
from purerl.backends.megatron.trainer import Config, build
from purerl.kernels.logp import token_outputs
from purerl.settings import Model
from tests.megatron.cuda_stand_in import install

# pyright: reportMissingImports=false

LOAD = LOADS["many rows"]._replace(rows=32)
OUTPUTS = ("logp", "entropy")


class Part(NamedTuple):
    """A micro-batch: tokens and positions [rows, time], and of each action token the index of its hidden state."""

    tokens: Tensor
    positions: Tensor
    index: Tensor
    target: Tensor
    advantage: Tensor
    temperature: Tensor


def make_trainer(path: Path) -> MegatronTrainer:
    return build(Config(lr=1e-6), model=Model(str(path)), role="policy", outputs=OUTPUTS, updates=1000, seed=0)


def parts_of_step(trainer: MegatronTrainer, step: TensorDict) -> list[Part]:
    """The micro-batches of the trainer."""
    reads, parts = ("tokens", "temperature", "advantage"), []
    indices = trainer._arrange(step, reads, OBJECTIVE.unit)  # noqa: SLF001 - the same micro-batches
    for rows in trainer._rows(step, indices, reads):  # noqa: SLF001
        action = rows["action"]
        width = int(action.nonzero()[:, 1].max())  # the last token of the longest row is not read
        row, column = action.nonzero(as_tuple=True)
        at_action = (rows["tokens"][action], rows["advantage"][action], rows["temperature"][row])
        positions = torch.arange(width).expand(len(rows), width)
        parts.append(Part(rows["tokens"][:, :width], positions, (column - 1) * len(rows) + row, *at_action))
    return parts


def bare_step(trainer: MegatronTrainer, parts: list[Part]) -> Callable[[], float]:
    """A step with the model and the optimizer of `trainer`, by calls of Megatron-core; it returns the gradient norm."""
    from megatron.core.distributed import finalize_model_grads
    from megatron.core.pipeline_parallel import get_forward_backward_func

    model, optimizer, schedule = trainer.reader.module, trainer.optimizer, get_forward_backward_func()
    weight = trainer.reader.model.output_layer.weight
    trainer.reader.model.config.finalize_model_grads_func = finalize_model_grads
    for part in parts_of(optimizer):
        part.config.clip_grad = trainer.config.max_grad_norm

    def forward_step(iterator: Iterator[Part], module: Any) -> tuple[Tensor, Callable[..., Any]]:
        part = next(iterator)

        def loss(hidden: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
            own = hidden.flatten(0, 1).index_select(0, part.index)
            options = {"outputs": OUTPUTS, "choices": None, "k": 1, "scale": 1.0, "softcap": None, "shard": None}
            found = token_outputs(own, weight, None, part.target, part.temperature, **options)
            value = -(part.advantage * found["logp"]).sum()
            metrics = {"loss": value.detach(), "entropy": found["entropy"].detach().sum()}
            return value, torch.tensor(len(part.target), dtype=torch.int), metrics

        return module(part.tokens, part.positions, None), loss

    def step() -> float:
        model.zero_grad_buffer()
        optimizer.zero_grad()
        schedule(
            forward_step_func=forward_step,
            data_iterator=iter(parts),
            model=[model],
            num_microbatches=len(parts),
            seq_length=1,
            micro_batch_size=1,
            forward_only=False,
        )
        _, norm, _ = optimizer.step()
        return float(norm)

    return step


def timed(seconds: Counter[str], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose CPU time is added to `seconds`."""

    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.process_time()
        result = function(*args, **kwargs)
        seconds[name] += time.process_time() - start
        return result

    return call


class Step(NamedTuple):
    """The gradient norm of a step, its CPU time, and that of the trainer's own code."""

    norm: float
    seconds: float
    own: float = 0.0


def measured(run: Callable[[], float]) -> Step:
    seconds = Counter[str]()
    return Step(timed(seconds, "step", run)(), seconds["step"])


def watched(trainer: MegatronTrainer, run: Callable[[], float]) -> Step:
    """`run`, a step of `trainer`, with its own code measured apart."""
    from megatron.core import pipeline_parallel

    seconds, schedule = Counter[str](), pipeline_parallel.get_forward_backward_func()
    places = {
        "schedule": (pipeline_parallel, "get_forward_backward_func"),
        "loss": (trainer, "_loss"),
        "token_outputs": (own_schedule, "token_outputs"),
        "hidden": (own_schedule.Reader, "hidden"),
        "module": (trainer.reader.module, "forward"),
        "optimizer": (trainer.optimizer, "step_with_ready_grads"),
    }
    with ExitStack() as stack:
        for name, (owner, attribute) in places.items():
            new = timed(seconds, name, schedule if name == "schedule" else getattr(owner, attribute))
            value = (lambda new=new: new) if name == "schedule" else new
            stack.enter_context(mock.patch.object(owner, attribute, value))
        step = measured(run)
    inside = seconds["loss"] - seconds["token_outputs"] + seconds["hidden"] - seconds["module"]
    return step._replace(own=step.seconds - seconds["schedule"] + inside - seconds["optimizer"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    install()
    with tempfile.TemporaryDirectory() as folder:
        write_model(LOAD, Path(folder))
        trainer, other = make_trainer(Path(folder)), make_trainer(Path(folder))
    step, counts = prepare_step(OBJECTIVE, make_batch(LOAD))
    parts = parts_of_step(other, step)
    bare = bare_step(other, parts)

    def own() -> float:
        norm = trainer.step(step, OBJECTIVE, counts)["grad_norm"]
        return float(norm.total / norm.weight)

    ways = [lambda: watched(trainer, own), lambda: measured(bare)]
    rounds: list[list[Step]] = []
    for turn in range(options.rounds + 1):
        first, second = (run() for run in ways[:: 1 if turn % 2 else -1])
        rounds.append([first, second] if turn % 2 else [second, first])
        if not math.isclose(first.norm, second.norm, rel_tol=1e-4):
            raise SystemExit(f"the gradient norms are {first.norm} and {second.norm}")
    show(parts, rounds[1:])  # the first one warms up


def show(parts: list[Part], rounds: list[list[Step]]) -> None:
    print(f"{len(parts)} micro-batches of {sum(len(part.tokens) for part in parts)} rows")
    for name, steps in zip(("trainer", "bare"), zip(*rounds, strict=True), strict=True):
        seconds = [step.seconds for step in steps]
        print(f"{name:<8} median {median(seconds):6.3f} s, best {min(seconds):6.3f} s")
    added = [1 - bare.seconds / one.seconds for one, bare in rounds]
    own = [one.own / one.seconds for one, _ in rounds]
    for name, part in (("difference", added), ("own code", own)):
        print(f"{name}: {median(part):.2%} of the trainer's step (rounds: {min(part):.2%} to {max(part):.2%})")


if __name__ == "__main__":
    main()
