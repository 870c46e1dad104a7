"""Metrics of a batch as totals and weights, which merge exactly: the division follows after all parts are added."""

from __future__ import annotations

from collections.abc import Callable

from purerl.algos.algebra import Bound, Weighted, bind
from purerl.kernels.masks import count_true, masked
from purerl.types import TensorDict, TokenFloat

__all__ = ["token_means"]


def token_means(**metrics: Callable[[TensorDict], TokenFloat]) -> Bound:
    """Return a function batch -> metrics: the mean over counted tokens of each of `metrics`, by name."""
    return bind(_token_means, metrics=tuple(metrics.items()))


def _token_means(batch: TensorDict, *, metrics: tuple[tuple[str, Callable], ...]) -> dict[str, Weighted]:
    mask = batch["mask"]
    tokens = count_true(mask).sum(-1)
    return {name: Weighted(masked(metric(batch), mask).sum((-2, -1)), tokens) for name, metric in metrics}
