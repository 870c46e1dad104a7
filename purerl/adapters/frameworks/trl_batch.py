"""TRL's completions as a batch, and the fields of a batch that TRL carries to the loss of each micro-batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from purerl.adapters.frameworks.tensors import completions
from purerl.algos.algebra import Counts, Objective
from purerl.algos.parts.rows import at_last_action
from purerl.batch import with_fields
from purerl.data.open import NUMBER_COLUMNS
from purerl.errors import DataError
from purerl.kernels.masks import any_true
from purerl.types import TensorDict

__all__ = [
    "Sampled",
    "check_columns",
    "check_components",
    "columns_of",
    "counts_of_inputs",
    "loss_batch",
    "stored_fields",
    "whole_batch",
]

_PREFIX = "purerl/"


class Sampled(NamedTuple):
    """Values that TRL computes while it samples, and does not return.

    rewards     float [rows of all processes, functions]; NaN where a function returned None
    truncated   bool [rows of this process]: the completion has no end token
    columns     float [rows of this process]: columns of the data set that the algorithm reads, by name
    """

    rewards: Tensor
    truncated: Tensor
    columns: Mapping[str, Tensor]


def whole_batch(
    output: Mapping[str, Any],
    sampled: Sampled,
    scores: Mapping[str, Tensor],
    *,
    gather: Callable[[Tensor], Tensor],
    group_size: int,
    reward_weights: Tensor,
    temperature: float,
) -> TensorDict:
    """Return the batch of the generation batch of all processes.

    output   what TRL's `_generate_and_score_completions` returns
    scores   log-probabilities and entropies of the rows of this process, by the names of the schema

    The reward of a row is the weighted sum of its rewards. A row for which every function returned None is masked out.
    The rows of a prompt follow each other.
    """
    mask = output["completion_mask"]
    mask = gather((mask * output["tool_mask"] if "tool_mask" in output else mask).bool())
    rewards = sampled.rewards
    is_scored = ~rewards.isnan().all(-1)
    score = (rewards * reward_weights.to(rewards.device)).nansum(-1)
    batch = completions(mask, group=torch.arange(len(mask), device=mask.device) // group_size)
    fields = {name: gather(value) for name, value in {**scores, **sampled.columns}.items()}
    fields |= {
        "mask": batch["mask"] & is_scored.unsqueeze(-1),
        "reward": at_last_action(score, batch["action"]),
        "score": score,
        "components": rewards,
        "truncated": gather(sampled.truncated),
        "temperature": torch.full_like(score, temperature),
    }
    return with_fields(batch, **fields)


def check_columns(dataset: Any, names: Iterable[str]) -> None:
    """Raise DataError if `dataset`, the training data, is known to have no column of one of `names`."""
    known = getattr(dataset, "column_names", None)
    for name in names:
        if known is not None and name not in known:
            need = "a number in every row: the algorithm reads it"
            got, do = ", ".join(known), NUMBER_COLUMNS[name]
            raise DataError(f"train_dataset has no column {name!r}", got=got, need=need, do=do)


def columns_of(inputs: Sequence[Mapping[str, Any]], names: Iterable[str], like: Tensor) -> dict[str, Tensor]:
    """Return the columns `names` of TRL's `inputs`, with the dtype and the device of `like`: [rows of this process].

    Raises: DataError for a row without a finite number.
    """
    columns = {name: [example.get(name) for example in inputs] for name in names}
    for name, values in columns.items():
        invalid = [value for value in values if not (isinstance(value, int | float) and math.isfinite(value))]
        if invalid:
            need = "a finite number in every row of train_dataset and eval_dataset"
            raise DataError(f"column {name!r}", got=repr(invalid[0]), need=need, do=NUMBER_COLUMNS[name])
    return {name: torch.tensor(values, dtype=like.dtype, device=like.device) for name, values in columns.items()}


def check_components(batch: TensorDict) -> None:
    """Raise DataError if a counted row has no value of a reward: who reads `components` needs all of them."""
    missing = batch["components"].isnan().any(-1) & any_true(batch["mask"])
    if missing.any():
        row = int(missing.nonzero()[0])
        got = f"None from reward function {int(batch['components'][row].isnan().nonzero()[0])} for completion {row}"
        raise DataError("rewards", got=got, need="a number from each reward function: the algorithm reads each reward")


def stored_fields(objective: Objective, batch: TensorDict, counts: Mapping[str, Counts]) -> dict[str, Tensor]:
    """Return what `loss_batch` and `counts_of_inputs` need, as entries of TRL's batch, which it shuffles and splits.

    Tensors without rows, such as counts, are in every part.
    """
    names = ("row", "group", "mask", "action", *(name for name in objective.reads if name in batch.keys()))
    fields = {f"{_PREFIX}{name}": batch[name] for name in names}
    for term, count in counts.items():
        fields |= {f"{_PREFIX}{term}/tokens": count.tokens, f"{_PREFIX}{term}/rows": count.rows}
    return fields


def loss_batch(inputs: Mapping[str, Any], logp: Tensor, entropy: Tensor) -> TensorDict:
    """Return the batch of a micro-batch of TRL, with the outputs of the forward pass."""
    stored = {key.removeprefix(_PREFIX): item for key, item in inputs.items() if key.startswith(_PREFIX) and item.ndim}
    fields = {**stored, "logp": logp, "entropy": entropy}
    if "importance_sampling_ratio" in inputs:
        fields["weight"] = inputs["importance_sampling_ratio"].expand_as(logp)
    return with_fields(completions(stored["mask"]), **fields)


def counts_of_inputs(objective: Objective, inputs: Mapping[str, Any], scale: float) -> dict[str, Counts]:
    """Return the counts of the generation batch, times `scale`."""
    return {
        term.name: Counts(*(inputs[f"{_PREFIX}{term.name}/{unit}"] * scale for unit in ("tokens", "rows")))
        for term in objective.terms
    }
