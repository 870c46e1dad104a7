"""Rows to micro-batches that are rectangles: every row is padded to the longest row of its micro-batch."""

from __future__ import annotations

from torch import Tensor

from purerl.kernels.partition.ranks import assign_ranks
from purerl.kernels.partition.rows import group_rows
from purerl.types import RowInt

__all__ = ["microbatches", "rank_microbatches"]


def microbatches(cost: RowInt, unit: RowInt, size: RowInt, *, budget: int) -> list[Tensor]:
    """The row indices of each micro-batch, in increasing order.

    cost     [rows] tokens of each row
    unit     [rows] labels; rows with the same label stay in one micro-batch
    size     [rows] what a row takes of the budget: its tokens, or 1; a row counts as 1 at least
    budget   maximum of (rows * size of the largest row) of a micro-batch; a single unit may exceed it

    Rows of similar cost share a micro-batch, so that there is little padding. Every row is in exactly one micro-batch.
    Without rows there is one empty micro-batch.

    >>> import torch
    >>> tokens = torch.tensor([9, 2, 9, 3])
    >>> microbatches(tokens, torch.arange(4), tokens, budget=18)
    [tensor([0, 2]), tensor([1, 3])]
    >>> microbatches(tokens, torch.arange(4), torch.ones_like(tokens), budget=3)
    [tensor([0, 2, 3]), tensor([1])]
    """
    units, largest = group_rows(cost, unit), group_rows(size, unit).width
    parts, part, rows, width = [0] * len(units.cost), 0, 0, 0
    # Units that are equal in all three are interchangeable, so the order of the rows changes no total.
    order = sorted(range(len(parts)), key=lambda index: (-units.width[index], -units.size[index], -units.cost[index]))
    for index in order:
        if rows and (rows + units.size[index]) * max(width, largest[index]) > budget:
            part, rows, width = part + 1, 0, 0
        width = max(width, largest[index])
        rows += units.size[index]
        parts[index] = part
    return units.rows_of(parts, number=part + 1)


def rank_microbatches(
    cost: RowInt, unit: RowInt, together: RowInt, size: RowInt, *, ranks: int, budget: int
) -> list[list[Tensor]]:
    """The row indices of the micro-batches of each rank, the same number for all ranks; the last ones may be empty.

    cost      [rows] tokens of each row
    unit      [rows] labels; rows with the same label stay in one micro-batch
    together  [rows] labels; rows with the same label stay on one rank, and so do those of a unit
    size      [rows] what a row takes of the budget: its tokens, or 1; a row counts as 1 at least
    ranks     number of ranks, at least 1
    budget    maximum of (rows * size of the largest row) of a micro-batch; a single unit may exceed it

    The rows of a rank are those of `assign_ranks`, and its micro-batches those of `microbatches`.

    >>> import torch
    >>> rows, tokens = torch.arange(4), torch.tensor([9, 2, 4, 3])
    >>> rank_microbatches(tokens, rows, rows, tokens, ranks=2, budget=6)
    [[tensor([0]), tensor([], dtype=torch.int64)], [tensor([2]), tensor([1, 3])]]
    """
    rank_of_row, parts = assign_ranks(cost, together, ranks=ranks), list[list[Tensor]]()
    for rank in range(ranks):
        rows = (rank_of_row == rank).nonzero()[:, 0]
        parts.append([rows[part] for part in microbatches(cost[rows], unit[rows], size[rows], budget=budget)])
    number, none = max(map(len, parts)), rank_of_row.nonzero()[:0, 0]
    return [[*part, *[none] * (number - len(part))] for part in parts]
