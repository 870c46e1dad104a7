"""A framework's tensors of completions as a batch: right-padded, and without prompts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from purerl.algos.algebra import Algorithm, Counts, Objective, Weighted, compute_advantages, keep_all
from purerl.batch import with_fields
from purerl.errors import BatchError, ConfigError
from purerl.types import TensorDict

__all__ = ["completions", "counts_of", "estimate", "group_labels", "means"]


def completions(mask: Tensor, *, group: Tensor | None = None, **fields: Tensor) -> TensorDict:
    """Return the batch of completions with `fields`, and with the fields of `STRUCTURE`.

    mask    [rows, time], of any dtype: tokens of the policy that are counted
    group   int64 [rows]; if not given, every row is a group of its own

    A reward counts at every position. Rows are numbered in their order.
    """
    from tensordict import TensorDict

    row, action = torch.arange(len(mask), device=mask.device), mask.bool()
    structure = {"attention_mask": torch.ones_like(action), "action": action, "mask": action, "row": row}
    return TensorDict({**structure, "group": row if group is None else group, **fields}, batch_size=[len(mask)])


def group_labels(index: Any, device: torch.device) -> Tensor:
    """Return a number for each label in `index`, an array or list of strings or integers; equal labels, equal numbers.

    >>> group_labels(["b", "a", "b"], torch.device("cpu"))
    tensor([0, 1, 0])
    """
    numbers: dict[Any, int] = {}
    labels = [numbers.setdefault(label, len(numbers)) for label in getattr(index, "tolist", lambda: index)()]
    return torch.tensor(labels, dtype=torch.int64, device=device)


def estimate(algorithm: Algorithm, reward: Tensor, mask: Tensor, index: Any, *, name: str) -> TensorDict:
    """Return the batch with the advantages of `algorithm`, an estimator that reads rewards and has no state.

    reward   float [rows, time]
    mask     [rows, time]
    index    label of the group of each row; None if there are none

    Raises: BatchError for an algorithm that compares the rows of a prompt without `index`, or if all groups have fewer
        rows than it needs, so that every advantage would be 0.
    """
    group = None if index is None else group_labels(index, reward.device)
    need = f"at least {algorithm.min_group_size} rows of a prompt"
    if group is None and algorithm.min_group_size > 1:
        raise BatchError(f"advantages of {name!r}", got="rows without labels of their prompts", need=need)
    if group is not None and len(group) and int(group.bincount().max()) < algorithm.min_group_size:
        got = f"{int(group.bincount().max())} rows in the largest group, so every advantage is 0"
        raise BatchError(f"advantages of {name!r}", got=got, need=need, do="sample more completions per prompt")
    batch = completions(mask, group=group, reward=reward)
    return with_fields(batch, **_advantages(algorithm, batch))


def _advantages(algorithm: Algorithm, batch: TensorDict) -> dict[str, Tensor]:
    _, after = compute_advantages(algorithm._replace(select=keep_all), algorithm.advantage.init(), batch)
    if not torch.equal(after["mask"], batch["mask"]):
        need = "an estimator that leaves the mask as it is: a framework passes only advantages on to the loss"
        raise ConfigError("an estimator that masks tokens out", need=need)
    return {name: after[name] for name in ("advantage", "returns") if name in after.keys()}


def counts_of(objective: Objective, tokens: Tensor, rows: Tensor) -> dict[str, Counts]:
    """Return the same counts for each term of `objective`."""
    return {term.name: Counts(tokens, rows) for term in objective.terms}


def means(metrics: dict[str, Weighted]) -> dict[str, float]:
    """Return the value of each metric as a number, with one transfer from the device. Without weight it is 0."""
    if not metrics:
        return {}
    totals = torch.stack([torch.as_tensor(metric.total).double() for metric in metrics.values()])
    weights = torch.stack([torch.as_tensor(metric.weight).double().to(totals.device) for metric in metrics.values()])
    values = torch.where(weights > 0, totals / torch.where(weights > 0, weights, 1), 0)
    return dict(zip(metrics, values.tolist(), strict=True))
