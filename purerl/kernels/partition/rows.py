"""The cost of a row, and rows by unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from purerl.types import RowInt, TokenBool

__all__ = ["Units", "group_rows", "tokens_needed", "totals"]


def tokens_needed(action: TokenBool) -> RowInt:
    """Tokens to read in each row: all before the last action token, whose own hidden state predicts nothing.

    >>> tokens_needed(torch.tensor([[False, True, True, False], [False, False, False, False]]))
    tensor([2, 0])
    """
    return (action * torch.arange(action.shape[-1], device=action.device)).amax(-1)


class Units(NamedTuple):
    """Rows by unit. Units are numbered in the order of their first rows.

    member   [rows] int64, the unit of each row
    cost     total cost of each unit
    size     rows of each unit
    width    cost of the most expensive row of each unit
    """

    member: Tensor
    cost: list[int]
    size: list[int]
    width: list[int]

    def rows_of(self, parts: Sequence[int], *, number: int) -> list[Tensor]:
        """The indices of the rows of `number` parts, in increasing order. `parts` has the part of each unit."""
        part_of_row = self.of_rows(parts)
        order = part_of_row.argsort(stable=True)
        return list(order.split(torch.bincount(part_of_row, minlength=number).tolist()))

    def of_rows(self, parts: Sequence[int]) -> Tensor:
        """The part of each row, from the part of each unit."""
        return torch.tensor(parts, dtype=torch.int64, device=self.member.device)[self.member]


def group_rows(cost: RowInt, unit: RowInt) -> Units:
    """The units of rows with these costs and labels; every row costs 1 at least."""
    labels, member = unit.unique(return_inverse=True)
    rows, zeros = torch.arange(len(unit), device=unit.device), torch.zeros_like(labels, dtype=torch.int64)
    order = zeros.scatter_reduce(0, member, rows, "amin", include_self=False).argsort()
    member, cost = order.argsort()[member], cost.long().clamp(min=1)
    columns = (
        zeros.scatter_add(0, member, cost),
        torch.bincount(member, minlength=len(labels)),
        zeros.scatter_reduce(0, member, cost, "amax"),
    )
    return Units(member, *(column.tolist() for column in columns))


def totals(costs: Sequence[int], parts: Sequence[int], *, number: int) -> list[int]:
    """The sum of `costs` in each of `number` parts.

    >>> totals([5, 3, 2], [0, 1, 1], number=3)
    [5, 5, 0]
    """
    sums = [0] * number
    for cost, part in zip(costs, parts, strict=True):
        sums[part] += cost
    return sums
