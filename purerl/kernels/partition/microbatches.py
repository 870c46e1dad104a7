"""Rows to micro-batches that are rectangles: every row is padded to the longest row of its micro-batch."""

from __future__ import annotations

from torch import Tensor

from purerl.kernels.partition.rows import group_rows
from purerl.types import RowInt

__all__ = ["microbatches"]


def microbatches(cost: RowInt, unit: RowInt, *, budget: int) -> list[Tensor]:
    """The row indices of each micro-batch, in increasing order.

    cost     [rows] tokens of each row
    unit     [rows] labels; rows with the same label stay in one micro-batch
    budget   maximum of (rows * cost of the longest row) of a micro-batch; a single unit may exceed it

    Rows of similar cost share a micro-batch, so that there is little padding. Every row is in exactly one micro-batch.
    Without rows there is one empty micro-batch.

    >>> import torch
    >>> microbatches(torch.tensor([9, 2, 9, 3]), torch.arange(4), budget=18)
    [tensor([0, 2]), tensor([1, 3])]
    """
    units = group_rows(cost, unit)
    parts, part, rows, width = [0] * len(units.cost), 0, 0, 0
    for index in sorted(range(len(parts)), key=lambda index: (-units.width[index], -units.size[index])):
        # Units are in descending order of width, so the first unit of a micro-batch determines its width.
        if rows and (rows + units.size[index]) * width > budget:
            part, rows = part + 1, 0
        width = width if rows else units.width[index]
        rows += units.size[index]
        parts[index] = part
    return units.rows_of(parts, number=part + 1)
