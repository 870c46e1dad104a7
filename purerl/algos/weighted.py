"""Metrics of parts of a step, which merge exactly: sums with their weights, and maxima."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from purerl.types import Scalar

__all__ = ["Largest", "Weighted", "merge"]


class Weighted(NamedTuple):
    """A metric with the value total / weight. Totals and weights of several parts add up, so merging is exact."""

    total: Scalar
    weight: Scalar


class Largest(Weighted):
    """A metric with the value total, if weight is 1: the largest one of all parts. A part without values has weight 0.

    Merging is exact: totals and weights are maxima. Its values are at least 0.

    >>> merge({"norm": Largest(1.0, 1.0)}, {"norm": Largest(3.0, 1.0)})
    {'norm': Largest(total=tensor(3.), weight=tensor(1.))}
    """

    __slots__ = ()


def merge(*metrics: Mapping[str, Weighted]) -> dict[str, Weighted]:
    """Merge the metrics of several parts: totals and weights add up; those of `Largest` are maxima.

    >>> merge({"kl": Weighted(1.0, 2.0)}, {"kl": Weighted(3.0, 2.0)})
    {'kl': Weighted(total=4.0, weight=4.0)}
    """
    names = dict.fromkeys(name for part in metrics for name in part)
    return {name: _merged([part[name] for part in metrics if name in part]) for name in names}


def _merged(parts: Sequence[Weighted]) -> Weighted:
    totals, weights = zip(*parts, strict=True)
    if isinstance(parts[0], Largest):
        return Largest(*(torch.stack([torch.as_tensor(x) for x in values]).amax(0) for values in (totals, weights)))
    return Weighted(sum(totals), sum(weights))
