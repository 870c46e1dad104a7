"""Laws of invariance: to padding, row order, labels and masked-out values, and to how an optimizer step is split."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Algorithm, Objective
from purerl.batch import with_fields
from purerl.testing.laws.law import assert_same, law, map_rows
from purerl.testing.outcome import Outcome, Split, run, run_objective, split_by_unit, steps
from purerl.testing.perturbations import (
    compact,
    fill_outside,
    gather_columns,
    make_rows_extreme,
    pad,
    randomize_labels,
    split_rows,
)

__all__ = [
    "compaction_invariance",
    "episode_invariance",
    "group_independence",
    "group_label_invariance",
    "masked_row_invariance",
    "masked_token_invariance",
    "metrics_merge",
    "microbatch_invariance",
    "padding_invariance",
    "permutation_equivariance",
    "rank_invariance",
]


@law
def padding_invariance(algorithm: Algorithm, batch: TensorDict) -> None:
    """Padding columns and a padding row do not change any result, whatever values they hold.

    The padded width depends on the other rows of a batch, so it must not matter. Common violations: a mean over the
    padded width, a statistic over all rows, a numerator without the mask.
    """
    rows, time = batch["mask"].shape
    actual = run(algorithm, pad(batch))
    unpadded = map_rows(actual, lambda value: value[:rows] if value.ndim == 1 else value[:rows, :time])
    assert_same(run(algorithm, batch), unpadded)


@law
def compaction_invariance(algorithm: Algorithm, batch: TensorDict) -> None:
    """Removing all tokens between action tokens does not change the results at action tokens.

    The rewards of the removed tokens move to an action token. The length of a tool's output must not matter. Common
    violations: a discount for each token instead of each action token, a lost reward on a tool token, a shift by one
    position.
    """
    compacted, columns = compact(batch)

    def expected_rows(value: Tensor) -> Tensor:
        return value if value.ndim == 1 else _at_actions(gather_columns(value, columns), compacted)

    expected = map_rows(run(algorithm, batch), expected_rows)
    actual = map_rows(run(algorithm, compacted), lambda value: _at_actions(value, compacted))
    assert_same(expected, actual, columns=columns)


@law
def permutation_equivariance(algorithm: Algorithm, batch: TensorDict) -> None:
    """Permuting the rows of a batch permutes the results in the same way.

    The order of rows has no meaning. Common violation: rows that are grouped by their position instead of their label.
    """
    order = torch.randperm(len(batch["row"]), generator=torch.Generator().manual_seed(0))
    expected = map_rows(run(algorithm, batch), lambda value: value[order])
    assert_same(expected, run(algorithm, batch[order]), rows=order)


@law
def masked_row_invariance(algorithm: Algorithm, batch: TensorDict) -> None:
    """Removing the rows without counted tokens does not change any result of the other rows.

    A rejected row must not enter the baseline of its group. Common violation: a group mean that divides by the number
    of all rows.
    """
    is_counted = batch["mask"].any(-1)
    if is_counted.any():
        expected = map_rows(run(algorithm, batch), lambda value: value[is_counted])
        assert_same(expected, run(algorithm, batch[is_counted]), rows=is_counted.nonzero()[:, 0])


@law
def group_label_invariance(algorithm: Algorithm, batch: TensorDict) -> None:
    """Replacing group labels by other integers, of any sign, size and order, does not change any result.

    Labels are names, not indices. Common violations: a label that is used as an index, labels that are reduced modulo a
    number.
    """
    assert_same(run(algorithm, batch), run(algorithm, randomize_labels(batch)))


@law
def masked_token_invariance(algorithm: Algorithm, batch: TensorDict) -> None:
    """NaN at positions that an algorithm must not read changes neither a value nor a gradient.

    Selection and the advantage stage must not read rows without counted tokens. In other rows they may read `reward` at
    every token, and other fields at action tokens. An objective may read counted tokens only. Common violation: 0 *
    NaN, in a value or in its gradient.
    """
    is_counted = batch["mask"].any(-1, keepdim=True)
    filled = fill_outside(batch, batch["action"] & is_counted)
    if "reward" in batch.keys():
        filled = with_fields(filled, reward=batch["reward"].where(batch["attention_mask"] & is_counted, torch.nan))
    assert_same(run(algorithm, batch), run(algorithm, filled))
    for objective, step in steps(algorithm, batch):
        assert_same(run_objective(objective, step), run_objective(objective, fill_outside(step, step["mask"])))


@law
def group_independence(algorithm: Algorithm, batch: TensorDict) -> None:
    """Extreme values in one group change neither a value nor a gradient of the other groups.

    Common violation: a baseline or a standard deviation over the batch instead of the group. A module that uses a
    statistic of the batch on purpose declares an exemption.
    """
    is_other = batch["group"] != batch["group"][0]

    def other_rows(outcome: Outcome) -> Outcome:
        return Outcome(map_rows(outcome, lambda value: value[is_other]).rows, {}, {})

    changed = make_rows_extreme(batch, ~is_other)
    expected, actual = other_rows(run(algorithm, batch)), other_rows(run(algorithm, changed))
    assert_same(expected, actual, rows=is_other.nonzero()[:, 0])


# --- splitting an episode ----------------------------------------------------------------------------------------


@law
def episode_invariance(algorithm: Algorithm, batch: TensorDict) -> None:
    """Splitting the rows of a batch into several rows of the same episode does not change any result.

    Each part has what comes before it as context. Rewards stay on their tokens. Selected rows, the fields of action
    tokens that the advantage stage writes, its state, losses and gradients are compared. An agent whose context is
    rewritten must not count more than others. Common violations: a mean over rows, a ratio of a row. A module whose
    loss has a ratio or a regression of whole rows declares an exemption.
    """
    split, origin = split_rows(batch)
    expected = map_rows(run(algorithm, batch), lambda value: _at_actions(value[origin], split))
    actual = map_rows(run(algorithm, split), lambda value: _at_actions(value, split))
    assert_same(expected._replace(metrics={}), actual._replace(metrics={}), rows=origin)


def _at_actions(value: Tensor, batch: TensorDict) -> Tensor:
    """`value`, with 0 at tokens that are not actions if it has a value for each token."""
    action = batch["action"]
    return value if value.ndim == 1 else value * action.reshape(action.shape + (1,) * (value.ndim - 2))


# --- splitting a step --------------------------------------------------------------------------------------------


@law
def microbatch_invariance(algorithm: Algorithm, batch: TensorDict) -> None:
    """The losses and gradients of micro-batches, one for each unit, sum to those of the whole optimizer step.

    A unit is a row or a group, and each micro-batch has its own padded width. Common violations: a division by the
    tokens or rows of the micro-batch, a statistic inside the loss, a loss of pairs with the unit "row".
    """
    _assert_split_invariance(algorithm, batch, split_by_unit)


@law
def rank_invariance(algorithm: Algorithm, batch: TensorDict) -> None:
    """The losses and gradients of data-parallel ranks sum to those of the whole step, even if a rank has no rows.

    Rows of one group may be on different ranks if the unit is "row". Common violations: a division by the local number
    of tokens or rows, a reduction that fails on an empty tensor.
    """
    _assert_split_invariance(algorithm, batch, _split_by_rank)


def _assert_split_invariance(algorithm: Algorithm, batch: TensorDict, split: Split) -> None:
    for objective, step in steps(algorithm, batch):
        expected = run_objective(objective, step)._replace(metrics={})
        assert_same(expected, run_objective(objective, step, split)._replace(metrics={}))


def _split_by_rank(objective: Objective, step: TensorDict) -> list[TensorDict]:
    """Assign the units at random to ranks 0 and 1. Rank 2 has no rows."""
    label = step[objective.unit]
    unique = label.unique()
    rank_of_unit = torch.randperm(len(unique), generator=torch.Generator().manual_seed(0)) % 2
    return [step[torch.isin(label, unique[rank_of_unit == rank])] for rank in range(3)]


@law
def metrics_merge(algorithm: Algorithm, batch: TensorDict) -> None:
    """The merged metrics of the parts of an optimizer step equal the metrics of the step.

    This makes a metric independent of the micro-batch size and the number of ranks. Common violation: a mean whose
    weight is not its number of tokens or rows.
    """
    for objective, step in steps(algorithm, batch):
        expected = Outcome({}, {}, run_objective(objective, step).metrics)
        for split in (split_by_unit, _split_by_rank):
            assert_same(expected, Outcome({}, {}, run_objective(objective, step, split).metrics))
