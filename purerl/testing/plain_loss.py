"""A plain loss, a function of tensors, in the place of an objective, so that the laws can run it.

The functions of `purerl.algos.algebra` protect an objective: they set masked-out values to 0, replace -inf, and count
the whole optimizer step. A plain loss is called without them, as a trainer calls it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Algorithm, Counts, Objective, compute_loss, identity, prepare_step, unchanged

__all__ = ["PlainLoss", "algorithm_of", "loss_of_part", "prepare", "share_of_rows", "whole"]


class PlainLoss(NamedTuple):
    """A plain loss, with the fields of an `Objective` that the laws use.

    function   (part, counts) -> the loss of a part of an optimizer step, a scalar; `counts` are those of the step
    weight     (part, counts) -> what the loss of a part is multiplied by before the parts are added up
    """

    function: Callable[[TensorDict, Counts], Tensor]
    weight: Callable[[TensorDict, Counts], Tensor]
    reads: tuple[str, ...]
    outputs: tuple[str, ...]
    unit: str = "row"
    role: str = "policy"
    metric_outputs: tuple[str, ...] = ()
    prepare: Callable[[TensorDict], TensorDict] = unchanged
    terms: tuple = ()


def whole(part: TensorDict, counts: Counts) -> Tensor:
    """1: the loss divides by the counts of the whole step, so the losses of the parts are added up."""
    return torch.ones_like(counts.rows)


def share_of_rows(part: TensorDict, counts: Counts) -> Tensor:
    """The share of the rows with counted tokens that are in `part`.

    A trainer that takes the mean of the losses of micro-batches with equally many rows does the same.
    """
    return part["mask"].any(-1).sum().double() / counts.rows


def algorithm_of(loss: PlainLoss) -> Algorithm:
    """The algorithm without an advantage stage whose only objective is `loss`."""
    objective: Any = loss
    return Algorithm(reads=(), advantage=identity, objectives=(objective,))


def prepare(objective: Objective | PlainLoss, step: TensorDict) -> tuple[TensorDict, Any]:
    """`prepare_step`. For a plain loss: the step as it is, and its counts, which are at least 1.

    They are those of all ranks, so that a step without counted tokens is that of a rank.
    """
    if isinstance(objective, PlainLoss):
        mask = step["mask"]
        return step, Counts(mask.sum().clamp(min=1), mask.any(-1).sum().clamp(min=1))
    return prepare_step(objective, step)


def loss_of_part(objective: Objective | PlainLoss, part: TensorDict, counts: Any) -> tuple[Tensor, dict]:
    """`compute_loss`. For a plain loss: what it returns for `part`, multiplied by its weight, and no metrics."""
    if isinstance(objective, PlainLoss):
        loss = objective.function(part, counts)
        return objective.weight(part, counts).to(loss.dtype) * loss, {}
    return compute_loss(objective, part, counts)
