"""Which rank and which micro-batch computes each row: pure functions, with the same result on every rank.

A row costs the number of tokens that the model has to read for it. Rows with the same `unit` label stay together.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heapreplace
from typing import NamedTuple

import torch
from torch import Tensor

from purerl.types import RowInt, TokenBool

__all__ = ["assign_ranks", "microbatches", "tokens_needed"]


def tokens_needed(action: TokenBool) -> RowInt:
    """Tokens to read in each row: all before the last action token, whose own hidden state predicts nothing.

    >>> tokens_needed(torch.tensor([[False, True, True, False], [False, False, False, False]]))
    tensor([2, 0])
    """
    return (action * torch.arange(action.shape[-1], device=action.device)).amax(-1)


def assign_ranks(cost: RowInt, unit: RowInt, *, ranks: int) -> RowInt:
    """The rank of each row: units in descending order of cost, each to the rank with the smallest total so far.

    cost   [rows] tokens of each row; every row counts as one at least
    unit   [rows] labels; rows with the same label get the same rank

    With fewer units than ranks, some ranks get no rows. Ties go to the lower rank.

    >>> assign_ranks(torch.tensor([5, 3, 3, 2]), torch.arange(4), ranks=2)
    tensor([0, 1, 1, 0])
    """
    units = _units(cost, unit)
    totals = [(0, rank) for rank in range(ranks)]
    heapify(totals)
    rank_of_unit = [0] * len(units.order)
    costs = torch.zeros_like(units.size).scatter_add_(0, units.member, cost.clamp(min=1)).tolist()
    for index in sorted(range(len(costs)), key=lambda index: (-costs[index], index)):
        total, rank = totals[0]
        rank_of_unit[index] = rank
        heapreplace(totals, (total + costs[index], rank))
    return torch.tensor(rank_of_unit, dtype=torch.int64, device=cost.device)[units.member]


def microbatches(cost: RowInt, unit: RowInt, *, budget: int) -> list[Tensor]:
    """The row indices of each micro-batch, in increasing order.

    cost     [rows] tokens of each row
    unit     [rows] labels; rows with the same label stay in one micro-batch
    budget   maximum of (rows * cost of the longest row) of a micro-batch; a single unit may exceed it

    Rows of similar cost share a micro-batch, so that there is little padding. Every row is in exactly one micro-batch.
    Without rows there is one empty micro-batch.

    >>> microbatches(torch.tensor([9, 2, 9, 3]), torch.arange(4), budget=18)
    [tensor([0, 2]), tensor([1, 3])]
    """
    units = _units(cost, unit)
    number, part, rows, width = [0] * len(units.order), 0, 0, 0
    for index, size, longest in units.widest_first():
        # Units are in descending order of width, so the first unit of a micro-batch determines its width.
        if rows and (rows + size) * width > budget:
            part, rows = part + 1, 0
        width = width if rows else longest
        rows += size
        number[index] = part
    parts = torch.tensor(number, dtype=torch.int64, device=cost.device)[units.member]
    return [(parts == k).nonzero()[:, 0] for k in range(part + 1)]


class _Units(NamedTuple):
    """Rows by unit: the unit of each row, rows and longest row of each unit, and units by descending width."""

    member: Tensor
    size: Tensor
    width: Tensor
    order: Tensor

    def widest_first(self) -> Iterator[tuple[int, int, int]]:
        """(number, rows, width) of each unit."""
        columns = (self.order, self.size[self.order], self.width[self.order])
        return zip(*(column.tolist() for column in columns), strict=True)


def _units(cost: RowInt, unit: RowInt) -> _Units:
    labels, member = unit.unique(return_inverse=True)
    size = torch.bincount(member, minlength=len(labels))
    width = torch.zeros_like(size).scatter_reduce(0, member, cost.clamp(min=1), "amax")
    return _Units(member, size, width, torch.argsort(width, descending=True, stable=True))
