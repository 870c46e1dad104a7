"""Pearson's chi-square test of counts."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple, TypeVar

import torch

__all__ = ["ChiSquare", "chi_square"]

MIN_EXPECTED = 5.0
"""Bins with a smaller expected count are merged."""

Outcome = TypeVar("Outcome", bound=Hashable)


class ChiSquare(NamedTuple):
    """`p_value` is the probability of a `statistic` at least as large, if the probabilities are right."""

    statistic: float
    degrees: int
    p_value: float


def chi_square(counts: Mapping[Outcome, int], probabilities: Mapping[Outcome, float]) -> ChiSquare:
    """Test whether outcomes with these `counts` have these `probabilities`.

        x = sum_k (o_k - n p_k)^2 / (n p_k),  p-value = Q((bins - 1) / 2, x / 2)

    n is the number of all outcomes, o_k the count of outcome k, Q the regularized upper incomplete gamma function.
    Outcomes with n p_k < 5, and those that are not in `probabilities`, share one bin; if less than 5 are expected in
    it, it is merged with the least likely of the others. With a single bin there is nothing to test: the p-value is 1.

    Source: Pearson 1900, On the criterion that a given system of deviations from the probable ...

    >>> chi_square({"heads": 60, "tails": 40}, {"heads": 0.5, "tails": 0.5})
    ChiSquare(statistic=4.0, degrees=1, p_value=0.04550026389635...)
    """
    n = sum(counts.values())
    likely = sorted((p, counts.get(key, 0)) for key, p in probabilities.items() if n * p >= MIN_EXPECTED)
    bins = [(n * p, count) for p, count in likely]
    rest = n - sum(expected for expected, _ in bins), n - sum(count for _, count in bins)
    if rest[0] < MIN_EXPECTED and bins:
        bins[0] = bins[0][0] + rest[0], bins[0][1] + rest[1]
    else:
        bins.append(rest)
    statistic, degrees = sum((count - expected) ** 2 / expected for expected, count in bins), len(bins) - 1
    halves = torch.tensor([degrees, statistic], dtype=torch.float64) / 2
    return ChiSquare(statistic, degrees, float(torch.special.gammaincc(*halves)) if degrees else 1.0)
