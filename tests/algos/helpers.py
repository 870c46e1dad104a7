"""Helpers of the algorithm tests: example batches, and the losses of an algorithm on a batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Algorithm, Objective, compute_advantages, compute_loss, prepare_step
from purerl.batch import collate, with_fields
from purerl.plugins import find, names
from purerl.testing import example_batch, fields_of

NAMES = names("algorithm")
MODULES = [find("algorithm", name) for name in NAMES]

LAYOUT = ((3, "..aax.a"), (3, ".aa"), (-1, ".a.a.aa"), (-1, "..xx"), (3, "..a"), (9, ".aaaa"))
ONE_TOKEN_ROWS = ((3, ".a"), (3, ".a"), (-1, ".a"), (-1, ".a"), (-1, ".a"))
PAIRS = ((3, "..aax"), (3, ".aa"), (-1, ".a.a"), (-1, "..xx"), (5, "..a"), (5, ".aaaa"))


def f64(*values: float | list) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def gradient_of(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The gradient of the sum of function(x)."""
    x = x.clone().requires_grad_()
    return torch.autograd.grad(function(x).sum(), x)[0]


def example(algorithm: Algorithm, layout=None, seed: int = 0) -> TensorDict:
    """A random batch with the fields of `algorithm`."""
    fields = fields_of(algorithm)
    return example_batch(fields, layout or (PAIRS if "chosen" in fields else LAYOUT), seed=seed)


def group_with_rewards(rewards: list[float], **fields) -> TensorDict:
    """One group with a row of two action tokens for each reward. The reward is at the last action token."""
    rows = [dict(tokens=[0] * 3, action=[0, 1, 1], row=k, group=7, reward=[0, 0, r]) for k, r in enumerate(rewards)]
    return with_fields(collate(rows), **{name: torch.tensor(value) for name, value in fields.items()})


def with_advantage(algorithm: Algorithm, batch: TensorDict) -> TensorDict:
    return compute_advantages(algorithm, algorithm.advantage.init(), batch)[1]


def loss_of(objective: Objective, batch: TensorDict) -> Tensor:
    step, counts = prepare_step(objective, batch)
    return compute_loss(objective, step, counts)[0]


def advantage_losses_and_gradients(algorithm: Algorithm, batch: TensorDict) -> list[Tensor]:
    """The advantage, if there is one, then the loss and the gradients of each objective."""
    batch = with_advantage(algorithm, batch)
    results = [batch["advantage"]] if "advantage" in batch.keys() else []
    for objective in algorithm.objectives:
        leaves = {name: batch[name].clone().requires_grad_() for name in objective.outputs}
        loss = loss_of(objective, with_fields(batch, **leaves))
        results += [loss.detach(), *torch.autograd.grad(loss, list(leaves.values()))]
    return results
