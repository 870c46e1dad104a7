"""Diagnostics of the gradients of a step, on request: how noisy they are, and whether terms of a loss conflict.

They are those of the loss of each objective on all rows of the step, before the first update, as if the step were one
optimizer step. The unit is that of the objective: a row, or a pair if the loss couples its rows.

    row_grad_norm, row_grad_norm_max   mean and maximum, over units with a counted token, of the norm of the gradient of
                                       the part of the loss that belongs to the unit
    gradient_noise_scale               `purerl.algos.diagnostics.gradient_noise_scale`, in units; with at least two
    gradient_cosine/A/B                cosine of the gradients of the terms A and B, if the loss has several

Cost: a forward and a backward pass of each unit on its own, one of the whole step, and one for each of several terms;
and the memory of a copy of the gradient, or of one for each term.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import cast

import torch
from torch import Tensor

from purerl.algos.algebra import Objective, prepare_step
from purerl.algos.diagnostics import gradient_cosine, gradient_noise_scale
from purerl.errors import ConfigError
from purerl.kernels.masks import any_true
from purerl.loop.update import units_of
from purerl.protocols import SupportsGradients, Trainer
from purerl.types import TensorDict

__all__ = ["check_trainers", "gradient_metrics"]


def check_trainers(trainers: Mapping[str, Trainer], objectives: Sequence[Objective]) -> None:
    """Raise ConfigError if a trainer that `objectives` train has no method `gradient`."""
    for role in dict.fromkeys(objective.role for objective in objectives):
        if not isinstance(trainers[role], SupportsGradients):
            got, need = f"the trainer {type(trainers[role]).__name__} of the {role}", "one with a method gradient"
            raise ConfigError("debug.gradient_steps", got=got, need=need, do="leave it out")


def gradient_metrics(
    trainers: Mapping[str, Trainer], batch: TensorDict, objectives: Sequence[Objective]
) -> dict[str, float]:
    """The metrics of the gradient of each of `objectives`, as ``ROLE/NAME``. No model changes.

    Raises: ConfigError as `check_trainers`.
    """
    check_trainers(trainers, objectives)
    return {
        f"{objective.role}/{name}": float(value)
        for objective in objectives
        for name, value in _of_objective(cast("SupportsGradients", trainers[objective.role]), batch, objective)
    }


def _of_objective(trainer: SupportsGradients, batch: TensorDict, objective: Objective) -> Iterator[tuple[str, Tensor]]:
    lean = objective._replace(metrics=_no_metrics, metric_outputs=())
    step, counts = prepare_step(lean, batch)
    units = units_of(step, objective.unit)
    members = (units == unit for unit in units[any_true(step["mask"])].unique())
    of_units = [_norm(trainer.gradient(step[member], lean, counts)) for member in members]
    norms = torch.stack(of_units) if of_units else torch.zeros(0)
    if len(norms):
        yield "row_grad_norm", norms.mean()
        yield "row_grad_norm_max", norms.max()
    if len(norms) > 1:
        yield "gradient_noise_scale", gradient_noise_scale(norms, _norm(trainer.gradient(step, lean, counts)))
    if len(lean.terms) > 1:
        parts = {term.name: trainer.gradient(step, lean._replace(terms=(term,)), counts) for term in lean.terms}
        for (a, first), (b, second) in combinations(parts.items(), 2):
            yield f"gradient_cosine/{a}/{b}", gradient_cosine(first, second)


def _norm(gradient: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([value.double().square().sum().cpu() for value in gradient.values()]).sum().sqrt()


def _no_metrics(batch: TensorDict) -> dict[str, Tensor]:
    return {}
