"""The value of a prompt for training, from how sure the policy is of it and how often it is solved."""

from __future__ import annotations

from purerl.algos.parts.groups import group_mean
from purerl.kernels.masks import as_mask, masked
from purerl.types import RowBool, RowFloat, RowInt

__all__ = ["prompt_value"]


def prompt_value(mean_logp: RowFloat, is_correct: RowBool, group: RowInt, counted: RowBool) -> RowFloat:
    """Compute the value of each row's prompt, as in CoDaPO: its confidence times the weight of its difficulty.

        c = exp(mean_g(mean_logp))
        d = 1 - mean_g(is_correct)
        v = c (1 - 4 (d - 1/2)^2)

    `mean_logp` is the mean log-probability of the tokens of a row, nats. v is largest for prompts of which half of the
    rows are correct, and 0 if all are, or none. It is between 0 and 1. The means are over the counted rows of the
    group; rows that are not counted get 0. Shapes: [rows] each. Source: CoDaPO (2606.07950).

    >>> import torch
    >>> counted, group = torch.tensor([True, True]), torch.tensor([3, 3])
    >>> prompt_value(torch.tensor([0.5, 0.5]).log(), torch.tensor([True, False]), group, counted)
    tensor([0.5000, 0.5000])
    """
    confidence = group_mean(mean_logp, group, counted).clamp(max=0).exp()
    difficulty = 1 - group_mean(as_mask(is_correct).to(mean_logp.dtype), group, counted)
    return masked(confidence * (1 - 4 * (difficulty - 0.5).square()), counted)
