"""Rows to packs: the rows of a pack are one line of tokens without padding, so its size is the sum of their tokens."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from purerl.kernels.partition.ranks import balance
from purerl.kernels.partition.rows import group_rows, totals
from purerl.types import RowInt

__all__ = ["first_fit_decreasing", "packs", "rank_packs"]


def packs(size: RowInt, unit: RowInt, *, budget: int) -> list[Tensor]:
    """The row indices of each pack, in increasing order: as few packs as first-fit decreasing finds.

    size     [rows] what a row takes of the budget: its tokens, or 1; a row counts as 1 at least
    unit     [rows] labels; rows with the same label stay in one pack
    budget   maximum of the sizes of a pack, at least 1; a unit that exceeds it gets a pack of its own

    Every row is in exactly one pack. The first pack has the largest unit. Without rows there is one empty pack.

    >>> import torch
    >>> packs(torch.tensor([3, 6, 7, 4]), torch.arange(4), budget=10)
    [tensor([0, 2]), tensor([1, 3])]
    """
    units = group_rows(size, unit)
    parts = first_fit_decreasing(units.cost, budget=budget)
    return units.rows_of(parts, number=max(parts, default=0) + 1)


def rank_packs(size: RowInt, unit: RowInt, cost: RowInt, *, ranks: int, budget: int) -> list[list[Tensor]]:
    """The packs of each rank, the same number for all ranks: few packs, and similar costs in the k-th packs of all.

    size     [rows] what a row takes of the budget: its tokens, or 1; a row counts as 1 at least
    unit     [rows] labels; rows with the same label stay in one pack
    cost     [rows] integers, proportional to the time of each row; a row counts as 1 at least
    ranks    number of ranks, at least 1
    budget   maximum of the sizes of a pack, at least 1; a unit that exceeds it gets a pack of its own

    Ranks that compute one model together wait for each other in every micro-batch. So the time is the number of packs,
    each with the largest cost of a rank. The number is at most that of `packs` divided by `ranks`, rounded up. The
    smallest number is taken for which `balance` over all packs of all ranks keeps the budget. If there is none, the
    packs are those of `packs`. Packs are in descending order of cost, and the larger ones of each place go to the ranks
    with the smaller totals. Every row is in exactly one pack; some packs are empty if there are too few units.

    >>> import torch
    >>> tokens = torch.tensor([3, 6, 7, 4, 2])
    >>> rank_packs(tokens, torch.arange(5), tokens, ranks=2, budget=20)
    [[tensor([0, 1, 4])], [tensor([2, 3])]]
    """
    units, costs = group_rows(size, unit), group_rows(cost, unit).cost
    # Ties are in the order of the units. In this order, units that are equal in size and in cost are interchangeable.
    order = sorted(range(len(costs)), key=lambda index: (units.cost[index], costs[index]))
    sizes, costs = ([column[index] for index in order] for column in (units.cost, costs))
    parts, number = _balanced_packs(sizes, costs, ranks=ranks, budget=budget)
    packs_of_ranks = _deal(totals(costs, parts, number=ranks * number), ranks=ranks)
    part_of_unit = dict(zip(order, parts, strict=True))
    rows = units.rows_of([part_of_unit[index] for index in range(len(order))], number=ranks * number)
    return [[rows[part] for part in parts] for parts in packs_of_ranks]


def first_fit_decreasing(sizes: Sequence[int], *, budget: int) -> list[int]:
    """The bin of each size: sizes in descending order, each into the first bin with enough room.

    A size above the budget fills a bin of its own. The number of bins is at most 11/9 of the smallest possible one,
    plus 6/9. A tree over the bins holds the largest room below each node, so a bin is found in logarithmic time.

    Source: Dosa 2007, The tight bound of first fit decreasing bin-packing algorithm is FFD(I) <= 11/9 OPT(I) + 6/9.

    >>> first_fit_decreasing([3, 12, 6, 7, 4], budget=10)  # 12; 7 + 3; 6 + 4
    [1, 0, 2, 1, 2]
    """
    leaves = 1 << max(len(sizes) - 1, 0).bit_length()
    room, bins = [budget] * (2 * leaves), [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        size, node = min(sizes[index], budget), 1
        while node < leaves:
            node = 2 * node + (room[2 * node] < size)
        bins[index] = node - leaves
        room[node] -= size
        while node > 1:
            node //= 2
            room[node] = max(room[2 * node], room[2 * node + 1])
    return bins


def _balanced_packs(sizes: Sequence[int], costs: Sequence[int], *, ranks: int, budget: int) -> tuple[list[int], int]:
    """The pack of each unit, and the number of packs per rank. See `rank_packs`."""
    bins = first_fit_decreasing(sizes, budget=budget)
    most = max(1, -(-(max(bins, default=0) + 1) // ranks))
    least = max(1, -(-sum(min(size, budget) for size in sizes) // (ranks * budget)))
    for number in range(least, most + 1):
        parts = balance(costs, ranks=ranks * number)
        if _keeps_budget(sizes, parts, number=ranks * number, budget=budget):
            return parts, number
    return bins, most


def _keeps_budget(sizes: Sequence[int], parts: Sequence[int], *, number: int, budget: int) -> bool:
    """Whether the sizes of every pack are at most `budget`, or it has a single unit."""
    units, taken = totals([1] * len(parts), parts, number=number), totals(sizes, parts, number=number)
    return all(total <= budget or count == 1 for total, count in zip(taken, units, strict=True))


def _deal(costs: Sequence[int], *, ranks: int) -> list[list[int]]:
    """The packs of each rank: the `ranks` most expensive packs first, the larger to the smaller total so far."""
    order, sums = sorted(range(len(costs)), key=lambda part: -costs[part]), [0] * ranks
    result: list[list[int]] = [[] for _ in range(ranks)]
    for start in range(0, len(order), ranks):
        smallest_first = sorted(range(ranks), key=sums.__getitem__)
        for part, rank in zip(order[start : start + ranks], smallest_first, strict=True):
            result[rank].append(part)
            sums[rank] += costs[part]
    return result
