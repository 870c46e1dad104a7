"""Sums of metrics and of scores over the ranks of a trainer."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from purerl.algos.algebra import Objective, Weighted, fingerprint, merge
from purerl.protocols import Metrics
from purerl.ranks import Ranks
from purerl.types import TensorDict

__all__ = ["check_call", "on_host", "sum_metrics", "sum_scores"]


def check_call(ranks: Ranks, method: str, batch: TensorDict, what: Objective | tuple[str, ...]) -> None:
    """Raise EngineError on every rank if ranks call different methods, with different rows, objectives or outputs.

    A field that is missing on every rank is not an error here: `check_batch` reports it.
    """
    if ranks.size == 1:
        return
    digest = hashlib.blake2b(digest_size=8)
    for name in ("row", "attention_mask"):
        if name in batch.keys():
            per_row = batch[name] if name == "row" else batch[name].sum(-1)
            digest.update(name.encode() + per_row.numpy().tobytes())
    digest.update(fingerprint(what).encode())
    ranks.check_same("a call of a trainer", f"{method}, {len(batch)} rows, {digest.hexdigest()}")


def on_host(metrics: Metrics) -> dict[str, Weighted]:
    """Metrics as float64 on the CPU, with one transfer per dtype. They are widened there: MPS has no float64."""
    wide = torch.float64
    flat = [x if isinstance(x, Tensor) else torch.tensor(x, dtype=wide) for metric in metrics.values() for x in metric]
    kinds = [(x.device, x.dtype) for x in flat]
    values: dict[int, Any] = {}
    for kind in dict.fromkeys(kinds):
        indices = [index for index, candidate in enumerate(kinds) if candidate == kind]
        values.update(zip(indices, torch.stack([flat[index] for index in indices]).cpu().double(), strict=True))
    return {name: type(metric)(values[2 * k], values[2 * k + 1]) for k, (name, metric) in enumerate(metrics.items())}


def sum_metrics(metrics: Metrics, ranks: Ranks) -> dict[str, Weighted]:
    """The metrics of all ranks, merged in float64. Each rank sends its own in a row of one matrix."""
    if ranks.size == 1:
        return dict(metrics)
    values = [float(value) for metric in metrics.values() for value in metric]
    matrix = torch.zeros(ranks.size, len(values), dtype=torch.float64)
    matrix[ranks.rank] = torch.tensor(values, dtype=torch.float64)
    rows = ranks.sum(matrix).unflatten(-1, (-1, 2))
    pairs = (zip(metrics.items(), row, strict=True) for row in rows)
    return merge(*({name: type(metric)(*pair) for (name, metric), pair in of_rank} for of_rank in pairs))


def sum_scores(scores: TensorDict, ranks: Ranks) -> TensorDict:
    """The scores of all rows, on every rank: each rank has 0 in the rows that other ranks have computed."""
    for value in scores.values():
        ranks.sum(value)
    return scores
