"""A framework's tensors of completions as a batch: right-padded, and without prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from purerl.algos.algebra import Algorithm, Counts, Objective, Weighted, compute_advantages, keep_all
from purerl.batch import with_fields
from purerl.errors import BatchError, ConfigError
from purerl.types import TensorDict

__all__ = [
    "completions",
    "counts_of",
    "estimate",
    "group_labels",
    "means",
    "number",
    "require_finite",
    "require_groups",
    "require_shape",
]


def number(value: Any, name: str, *, need: str = "a number", do: str | None = None) -> float:
    """Return `value` as a float.

    Raises: BatchError if it is no number.
    """
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise BatchError(name, got=repr(value), need=need, do=do) from error


def require_shape(shape: Sequence[int], **values: Any) -> None:
    """Check that each of `values` is a tensor with this shape.

    Raises: BatchError for the first one that is not.

    >>> require_shape((2, 3), advantages=torch.zeros(2, 3))
    """
    for name, value in values.items():
        if not isinstance(value, Tensor) or value.shape != torch.Size(shape):
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise BatchError(name, got=got, need=f"a tensor of shape {tuple(shape)}")


def require_finite(name: str, rewards: Tensor) -> None:
    """Check that all `rewards`, [rows, ...], are numbers.

    Raises: BatchError that names the first row with NaN or infinity.
    """
    rows = (~rewards.isfinite()).flatten(1).any(-1).nonzero()
    if len(rows):
        raise BatchError(f"{name} of row {int(rows[0])}", got="NaN or infinity", need="a number")


def require_groups(group: Tensor, size: int, *, name: str) -> None:
    """Check that a label in `group`, int64 [rows], which starts at 0, has at least `size` rows.

    Raises: BatchError for the advantages of the algorithm `name` if none has: each of them would be 0.
    """
    if len(group) and (largest := int(group.bincount().max())) < size:
        got = f"{largest} {'row' if largest == 1 else 'rows'} in the largest group, so every advantage is 0"
        need = f"at least {size} rows of a prompt"
        raise BatchError(f"advantages of {name!r}", got=got, need=need, do="sample more completions per prompt")


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

    Raises: BatchError for tensors and labels of other shapes, for rewards that are not finite, for an algorithm that
        compares the rows of a prompt without `index`, or if all groups have fewer rows than it needs, so that every
        advantage would be 0.
    """
    require_shape(mask.shape, token_level_rewards=reward)
    require_finite("rewards", reward)
    group = None if index is None else group_labels(index, reward.device)
    if group is None and algorithm.min_group_size > 1:
        need = f"at least {algorithm.min_group_size} rows of a prompt"
        raise BatchError(f"advantages of {name!r}", got="rows without labels of their prompts", need=need)
    if group is not None:
        require_shape([len(mask)], **{"labels of prompts": group})
        require_groups(group, algorithm.min_group_size, name=name)
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
