"""Laws of `purerl.kernels.partition`, as functions of an implementation and a case, and their mutants.

An implementation is a function of a case that returns parts: lists of row indices. Bounds of the quality are compared
with the best solution, which brute force finds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from typing import NamedTuple

import torch
from hypothesis import strategies as st

from purerl.kernels.partition import assign_ranks, microbatches, packs, rank_packs
from purerl.kernels.partition.packs import first_fit_decreasing
from purerl.kernels.partition.ranks import balance, largest_differencing, longest_first

__all__ = ["CASES", "LAWS", "MUTANTS", "Case", "device_of_arguments"]


class Case(NamedTuple):
    """Rows with costs and labels, and what they are divided by. `seed` selects a permutation of rows or labels."""

    cost: list[int]
    unit: list[int]
    ranks: int
    budget: int
    seed: int

    def columns(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor(self.cost, dtype=torch.int64), torch.tensor(self.unit, dtype=torch.int64)

    def shuffled(self) -> Case:
        order = torch.randperm(len(self.cost), generator=torch.Generator().manual_seed(self.seed)).tolist()
        return self._replace(cost=[self.cost[i] for i in order], unit=[self.unit[i] for i in order])

    def renamed(self) -> Case:
        random = torch.Generator().manual_seed(self.seed)
        labels = sorted(set(self.unit))
        names = dict(zip(labels, (torch.randperm(99, generator=random) - 50).tolist(), strict=False))
        return self._replace(unit=[names[label] for label in self.unit])

    def unit_costs(self) -> list[int]:
        """The cost of each unit, in the order of the first rows."""
        sums = dict.fromkeys(self.unit, 0)
        for cost, label in zip(self.cost, self.unit, strict=True):
            sums[label] += max(cost, 1)
        return list(sums.values())


def cases(rows: int, cost: int, labels: int = 9) -> st.SearchStrategy[Case]:
    """Cases with up to `rows` rows. Labels are few, so most units have several rows."""
    row = st.tuples(st.integers(0, cost), st.integers(0, labels))
    return st.builds(
        lambda rows, *rest: Case([cost for cost, _ in rows], [label for _, label in rows], *rest),
        st.lists(row, max_size=rows),
        st.integers(1, 4),
        st.integers(1, 3 * cost),
        st.integers(0, 2**16),
    )


CASES = {"many": cases(24, 30), "small": cases(8, 10, labels=10**6)}
"""Brute force needs small cases; in these most rows are units of their own."""

Parts = list[list[int]]
Partition = Callable[[Case], Parts]


# --- implementations ---------------------------------------------------------------------------------------------


def ranks_of(case: Case, assign: Callable = assign_ranks) -> Parts:
    rank_of_row = assign(*case.columns(), ranks=case.ranks)
    assert rank_of_row.dtype == torch.int64
    return [(rank_of_row == rank).nonzero()[:, 0].tolist() for rank in range(case.ranks)]


def microbatches_of(case: Case) -> Parts:
    tokens, unit = case.columns()
    return [part.tolist() for part in microbatches(tokens, unit, tokens, budget=case.budget)]


def microbatches_by_rows_of(case: Case) -> Parts:
    """The budget is a number of rows."""
    tokens, unit = case.columns()
    return [part.tolist() for part in microbatches(tokens, unit, torch.ones_like(tokens), budget=case.budget)]


def packs_of(case: Case, divide: Callable = packs) -> Parts:
    return [part.tolist() for part in divide(*case.columns(), budget=case.budget)]


def rank_packs_of(case: Case, divide: Callable = rank_packs) -> Parts:
    """The packs of all ranks. The cost is the square of the tokens."""
    tokens, unit = case.columns()
    result = divide(tokens, unit, tokens.square(), ranks=case.ranks, budget=case.budget)
    assert len(result) == case.ranks
    assert len({len(parts) for parts in result}) == 1
    return [part.tolist() for parts in result for part in parts]


IMPLEMENTATIONS: dict[str, Partition] = {
    "assign_ranks": ranks_of,
    "microbatches": microbatches_of,
    "microbatches_by_rows": microbatches_by_rows_of,
    "packs": packs_of,
    "rank_packs": rank_packs_of,
}


# --- laws --------------------------------------------------------------------------------------------------------


def every_row_once(partition: Partition, case: Case) -> None:
    parts = partition(case)
    assert sorted(row for part in parts for row in part) == list(range(len(case.cost)))
    assert all(part == sorted(part) for part in parts)


def units_not_split(partition: Partition, case: Case) -> None:
    labels = [{case.unit[row] for row in part} for part in partition(case)]
    assert sum(map(len, labels)) == len(set(case.unit))


def labels_are_names(partition: Partition, case: Case) -> None:
    assert partition(case.renamed()) == partition(case)


def order_changes_no_total(partition: Partition, case: Case) -> None:
    """Rows in another order: the parts have the same numbers of rows, totals and maxima."""

    def sizes(case: Case) -> list[tuple[int, int, int]]:
        parts = [[max(case.cost[row], 1) for row in part] for part in partition(case)]
        return sorted((len(costs), sum(costs), max(costs, default=0)) for costs in parts)

    assert [total for _, total, _ in sizes(case.shuffled())] == [total for _, total, _ in sizes(case)]


def device_of_arguments(partition: Partition, case: Case) -> None:
    """Nothing is created on the default device: here a device without values, where every result would be an error."""
    expected = partition(case)
    columns = case.columns()
    with torch.device("meta"):
        assert partition(_WithColumns(case, columns)) == expected


class _WithColumns:
    """A case whose columns were created before."""

    def __init__(self, case: Case, columns: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.ranks, self.budget, self._columns = case.ranks, case.budget, columns

    def columns(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._columns


def totals_differ_by_one_unit(partition: Partition, case: Case) -> None:
    sums = [sum(max(case.cost[row], 1) for row in part) for part in partition(case)]
    assert max(sums) - min(sums) <= max(case.unit_costs(), default=0)


def no_rank_without_rows(partition: Partition, case: Case) -> None:
    assert sum(map(bool, partition(case))) == min(len(set(case.unit)), case.ranks)


def packs_within_budget(partition: Partition, case: Case) -> None:
    for part in partition(case):
        single = len({case.unit[row] for row in part}) <= 1
        assert single or sum(max(case.cost[row], 1) for row in part) <= case.budget


def rectangles_within_budget(partition: Partition, case: Case) -> None:
    for part in partition(case):
        single = len({case.unit[row] for row in part}) <= 1
        assert single or len(part) * max(max(case.cost[row], 1) for row in part) <= case.budget


def rows_within_budget(partition: Partition, case: Case) -> None:
    for part in partition(case):
        assert len({case.unit[row] for row in part}) <= 1 or len(part) <= case.budget


def no_more_packs_than_first_fit(partition: Partition, case: Case) -> None:
    assert len(partition(case)) <= case.ranks * max(1, ceil(len(packs_of(case)) / case.ranks))


# --- laws of quality: an implementation is a function of the costs of units ---------------------------------------


def smallest_maximum(costs: Sequence[int], ranks: int) -> int:
    """The smallest possible largest total: all assignments, without those that differ in the order of ranks only."""
    states = {(0,) * ranks}
    for cost in costs:
        states = {
            tuple(sorted((*sums[:rank], sums[rank] + cost, *sums[rank + 1 :])))
            for sums in states
            for rank in range(ranks)
        }
    return min(max(sums) for sums in states)


def fewest_bins(sizes: Sequence[int], budget: int) -> int:
    """The smallest possible number of bins."""
    states = {()}
    for size in sorted(sizes, reverse=True):
        states = {
            tuple(sorted((*bins[:k], bins[k] + size, *bins[k + 1 :])))
            for bins in states
            for k in range(len(bins))
            if bins[k] + size <= budget
        } | {tuple(sorted((*bins, min(size, budget)))) for bins in states}
    return min(map(len, states))


def _largest(assign: Callable[..., list[int]], case: Case) -> tuple[int, int]:
    costs = case.unit_costs()
    parts = assign(costs, ranks=case.ranks)
    sums = [sum(cost for cost, part in zip(costs, parts, strict=True) if part == rank) for rank in range(case.ranks)]
    return max(sums), smallest_maximum(costs, case.ranks)


def within_bound_of_longest_first(assign: Callable[..., list[int]], case: Case) -> None:
    """At most (4/3 - 1/(3m)) of the best (Graham 1969)."""
    largest, best = _largest(assign, case)
    assert 3 * case.ranks * largest <= (4 * case.ranks - 1) * best


def within_bound_of_largest_differencing(assign: Callable[..., list[int]], case: Case) -> None:
    """At most 7/6 of the best for two ranks (Fischetti and Martello 1987).

    For more, at most (4/3 - 1/(3 (m - 1))) (Michiels, Korst, Aarts and van Leeuwen 2003).
    """
    largest, best = _largest(assign, case)
    m = case.ranks
    assert (6 * largest <= 7 * best) if m <= 2 else 3 * (m - 1) * largest <= (4 * (m - 1) - 1) * best


def differences_equal_the_definition(assign: Callable[..., list[int]], case: Case) -> None:
    """With two ranks, the two largest numbers are replaced by their difference until one is left (Karmarkar, Karp)."""
    costs = case.unit_costs()
    numbers = [0, *costs]
    while len(numbers) > 1:
        *numbers, b, a = sorted(numbers)
        numbers.append(a - b)
    parts = assign(costs, ranks=2)
    assert numbers == [abs(sum(cost if part else -cost for cost, part in zip(costs, parts, strict=True)))]


def no_worse_than_longest_first(assign: Callable[..., list[int]], case: Case) -> None:
    assert _largest(assign, case)[0] <= _largest(longest_first, case)[0]


def within_bound_of_first_fit_decreasing(pack: Callable[..., list[int]], case: Case) -> None:
    """At most 11/9 of the fewest bins, plus 6/9 (Dosa 2007)."""
    sizes = case.unit_costs()
    number = len(set(pack(sizes, budget=case.budget)))
    assert 9 * number <= 11 * fewest_bins(sizes, case.budget) + 6


EVERY = tuple(IMPLEMENTATIONS.values())

LAWS: dict[Callable, tuple[str, tuple[Callable, ...]]] = {
    every_row_once: ("many", EVERY),
    units_not_split: ("many", EVERY),
    labels_are_names: ("many", EVERY),
    order_changes_no_total: ("many", EVERY),
    device_of_arguments: ("many", EVERY),
    totals_differ_by_one_unit: ("many", (ranks_of,)),
    no_rank_without_rows: ("many", (ranks_of,)),
    packs_within_budget: ("many", (packs_of, rank_packs_of)),
    rectangles_within_budget: ("many", (microbatches_of,)),
    rows_within_budget: ("many", (microbatches_by_rows_of,)),
    no_more_packs_than_first_fit: ("many", (rank_packs_of,)),
    within_bound_of_longest_first: ("small", (longest_first, balance)),
    within_bound_of_largest_differencing: ("small", (largest_differencing,)),
    differences_equal_the_definition: ("many", (largest_differencing,)),
    no_worse_than_longest_first: ("small", (balance,)),
    within_bound_of_first_fit_decreasing: ("small", (first_fit_decreasing,)),
}
"""Each law, the cases that it needs, and the implementations that it holds for."""


# --- mutants -----------------------------------------------------------------------------------------------------


def last_row_lost(case: Case) -> Parts:
    return [[row for row in part if row < 5] for part in packs_of(case)]


def rows_instead_of_units(case: Case) -> Parts:
    return ranks_of(case._replace(unit=list(range(len(case.unit)))))


def ties_by_label(case: Case) -> Parts:
    cost, unit = case.columns()
    order = unit.argsort(stable=True)
    rank_of_row = torch.empty_like(cost).index_copy(0, order, assign_ranks(cost[order], unit[order], ranks=case.ranks))
    return ranks_of(case, assign=lambda *_, ranks: rank_of_row)


def packs_in_order_of_rows(case: Case) -> Parts:
    return packs_of(case, divide=_next_fit_of_rows)


def _next_fit_of_rows(cost: torch.Tensor, unit: torch.Tensor, *, budget: int) -> list[torch.Tensor]:
    numbers = next_fit(cost.tolist(), budget=budget)
    return [torch.tensor([row for row, k in enumerate(numbers) if k == part]) for part in sorted(set(numbers))]


def rank_on_default_device(case: Case) -> Parts:
    return ranks_of(
        case, assign=lambda *columns, ranks: assign_ranks(*columns, ranks=ranks) + torch.zeros((), dtype=int)
    )


def round_robin(case: Case) -> Parts:
    numbers = {label: number % case.ranks for number, label in enumerate(dict.fromkeys(case.unit))}
    return [[row for row, label in enumerate(case.unit) if numbers[label] == rank] for rank in range(case.ranks)]


def all_on_rank_0(case: Case) -> Parts:
    return [list(range(len(case.cost)))] + [[] for _ in range(case.ranks - 1)]


def one_token_above_budget(case: Case, divide: Partition = packs_of) -> Parts:
    return divide(case._replace(budget=case.budget + 1))


def pack_per_unit(case: Case) -> Parts:
    return packs_of(case._replace(budget=1)) * case.ranks


def in_given_order(costs: Sequence[int], *, ranks: int) -> list[int]:
    """`longest_first` without the descending order."""
    sums, parts = [0] * ranks, []
    for cost in costs:
        parts.append(sums.index(min(sums)))
        sums[parts[-1]] += cost
    return parts


def next_fit(sizes: Sequence[int], *, budget: int) -> list[int]:
    """Bins in the order of the sizes; a bin that is left is never used again."""
    total, number, bins = 0, 0, []
    for size in sizes:
        if total and total + size > budget:
            total, number = 0, number + 1
        total += size
        bins.append(number)
    return bins


MUTANTS: dict[Callable, dict[str, Callable]] = {
    every_row_once: {"last_row_lost": last_row_lost},
    units_not_split: {"rows_instead_of_units": rows_instead_of_units},
    labels_are_names: {"ties_by_label": ties_by_label},
    order_changes_no_total: {"packs_in_order_of_rows": packs_in_order_of_rows, "round_robin": round_robin},
    device_of_arguments: {"rank_on_default_device": rank_on_default_device},
    totals_differ_by_one_unit: {"round_robin": round_robin},
    no_rank_without_rows: {"all_on_rank_0": all_on_rank_0},
    packs_within_budget: {"one_token_above_budget": one_token_above_budget, "rectangles": all_on_rank_0},
    rectangles_within_budget: {"packs_instead_of_rectangles": packs_of},
    rows_within_budget: {"one_row_above_budget": partial(one_token_above_budget, divide=microbatches_by_rows_of)},
    no_more_packs_than_first_fit: {"pack_per_unit": pack_per_unit},
    within_bound_of_longest_first: {"in_given_order": in_given_order},
    within_bound_of_largest_differencing: {"in_given_order": in_given_order},
    differences_equal_the_definition: {"longest_first": longest_first},
    no_worse_than_longest_first: {"in_given_order": in_given_order},
    within_bound_of_first_fit_decreasing: {"next_fit": next_fit},
}
"""Each law must detect each of its mutants."""
