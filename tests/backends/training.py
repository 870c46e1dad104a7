"""Batches, objectives and optimizer steps for the tests of the HF trainer."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Counts, Objective, Term, of_fields, prepare_step
from purerl.algos.parts.reductions import token_mean
from purerl.backends.hf.training.engine import HFTrainer
from purerl.batch import with_fields
from purerl.testing.batches import Layout, example_batch
from tests.backends.tiny import VOCAB_SIZE

LAYOUT = ((0, "..aaa.aax"), (1, "..a"), (0, "...axaaaaa."), (2, "."), (0, "..a..aa"), (1, "..aaaa"))


def make_batch(seed: int = 0, dtype: torch.dtype = torch.float64, layout: Layout = LAYOUT) -> TensorDict:
    batch = example_batch(("old_logp", "advantage", "temperature", "returns"), layout, seed=seed, dtype=dtype)
    tokens = torch.randint(0, VOCAB_SIZE, batch["tokens"].shape, generator=torch.Generator().manual_seed(seed))
    return with_fields(batch, tokens=torch.where(batch["attention_mask"], tokens, 0))


def _policy_gradient(logp: Tensor, advantage: Tensor) -> Tensor:
    return -advantage * logp


def _squared_error(output: Tensor, returns: Tensor) -> Tensor:
    return (output - returns).square() / 2


def regression(output: str, role: str = "critic") -> Objective:
    """Half the squared error of `output` with the target `returns`."""
    return Objective(
        role, ("returns",), (output,), (Term(output, of_fields(_squared_error, output, "returns"), token_mean),)
    )


POLICY = Objective(
    "policy",
    ("advantage",),
    ("logp",),
    (Term("policy", of_fields(_policy_gradient, "logp", "advantage"), token_mean),),
    metric_outputs=("entropy",),
)
CRITIC = regression("value")


def make_step(seed: int, objective: Objective = POLICY) -> tuple[TensorDict, Objective, dict[str, Counts]]:
    """The arguments of `Trainer.step`."""
    step, counts = prepare_step(objective, make_batch(seed))
    return step, objective, counts


def train(trainer: HFTrainer, steps: int = 1, objective: Objective = POLICY) -> list[dict[str, float]]:
    """Take `steps` optimizer steps; return the metrics of each."""
    reports = [trainer.step(*make_step(seed, objective)) for seed in range(steps)]
    return [{name: float(m.total / m.weight) for name, m in report.items() if m.weight} for report in reports]


def parameters_of(trainer: HFTrainer) -> dict[str, Tensor]:
    """A copy of all parameters, including those of heads."""
    return {name: parameter.detach().clone() for name, parameter in trainer.module.named_parameters()}


def weights_of(trainer: HFTrainer) -> dict[str, Tensor]:
    """A copy of `trainer.weights()`."""
    return {name: weight.clone() for name, weight in trainer.weights()}


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Whether two dicts of tensors are equal, bit for bit."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
