"""Rows to ranks: two heuristics for the smallest possible maximum of the totals, and the choice between them."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

from torch import Tensor

from purerl.kernels.partition.rows import group_rows, totals
from purerl.types import RowInt

__all__ = ["CLEAR_GAIN", "assign_ranks", "balance", "largest_differencing", "longest_first"]

CLEAR_GAIN = 0.01
"""The share of the largest total that `largest_differencing` must save. Costs are estimates that are less precise."""


def assign_ranks(cost: RowInt, unit: RowInt, *, ranks: int) -> Tensor:
    """The rank of each row, so that the largest total cost of a rank is small.

    cost   [rows] integers, proportional to the time of each row; a row counts as 1 at least
    unit   [rows] labels; rows with the same label get the same rank
    ranks  number of ranks, at least 1

    Returns int64 [rows]. The totals of two ranks differ by at most the cost of the most expensive unit. With fewer
    units than ranks, some ranks get no rows; otherwise none is without rows. See `balance`.

    >>> import torch
    >>> assign_ranks(torch.tensor([5, 3, 3, 2]), torch.arange(4), ranks=2)
    tensor([0, 1, 1, 0])
    """
    units = group_rows(cost, unit)
    return units.of_rows(balance(units.cost, ranks=ranks))


def balance(costs: Sequence[int], *, ranks: int) -> list[int]:
    """The rank of each unit: by `longest_first`, or by `largest_differencing` if that is clearly better.

    No assignment has a largest total below the mean and below the cost of the most expensive unit. `longest_first` is
    within 1 % of this bound if there are many units per rank, which is usual. It also gives all ranks about as many
    units, and it is faster by a factor of the number of ranks. So the other heuristic is only tried if there is 1 % to
    gain, and its result is only used if it saves as much. That happens with few large units, such as groups.
    """
    parts = longest_first(costs, ranks=ranks)
    largest = max(totals(costs, parts, number=ranks))
    if largest * (1 - CLEAR_GAIN) <= max(sum(costs) / ranks, max(costs, default=0)):
        return parts
    other = largest_differencing(costs, ranks=ranks)
    return other if max(totals(costs, other, number=ranks)) <= largest * (1 - CLEAR_GAIN) else parts


def longest_first(costs: Sequence[int], *, ranks: int) -> list[int]:
    """Units in descending order of cost, each to the rank with the smallest total so far. Ties go to the lower rank.

    Also known as longest processing time first. The largest total is at most 4/3 - 1/(3 * ranks) of the smallest
    possible one. Source: Graham 1969, Bounds on multiprocessing timing anomalies.

    >>> longest_first([8, 7, 6, 5, 4], ranks=2)  # 8 + 5 + 4 and 7 + 6
    [0, 1, 1, 0, 0]
    """
    sums, parts = [(0, rank) for rank in range(ranks)], [0] * len(costs)
    for index in sorted(range(len(costs)), key=lambda index: -costs[index]):
        total, rank = sums[0]
        parts[index] = rank
        heapreplace(sums, (total + costs[index], rank))
    return parts


def largest_differencing(costs: Sequence[int], *, ranks: int) -> list[int]:
    """Combine the two assignments with the largest differences between ranks, until there is one assignment.

    At first there is an assignment for each unit, with one rank that has it and others that have nothing. Two
    assignments are combined by giving the largest total of one to the rank with the smallest total of the other, and so
    on. Also known as the Karmarkar-Karp heuristic. Only differences matter, so the smallest total is subtracted from
    all. Rank 0 gets the largest total.

    Source: Karmarkar and Karp 1982, The differencing method of set partitioning.

    >>> largest_differencing([8, 7, 6, 5, 4], ranks=2)  # 7 + 5 + 4 and 8 + 6
    [1, 0, 1, 0, 0]
    """
    empty = ((),) * (ranks - 1)
    # Totals are negative and in ascending order, so the heap starts with the largest difference.
    heap = [((-cost,) + (0,) * (ranks - 1), number, ((number,), *empty)) for number, cost in enumerate(costs)]
    heapify(heap)
    while len(heap) > 1:
        sums, number, members = heappop(heap)
        other_sums, _, other_members = heap[0]
        combined = [a + b for a, b in zip(sums, reversed(other_sums), strict=True)]
        order = sorted(range(ranks), key=combined.__getitem__)
        smallest = combined[order[-1]]
        reordered = tuple(members[i] + other_members[ranks - 1 - i] for i in order)
        heapreplace(heap, (tuple(combined[i] - smallest for i in order), number, reordered))
    parts = [0] * len(costs)
    for rank, units in enumerate(heap[0][2] if heap else ()):
        for index in units:
            parts[index] = rank
    return parts
