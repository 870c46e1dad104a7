"""What an algorithm does not notice: how a batch is laid out, how a step is cut, what lies beside."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Algorithm, Objective
from purerl.batch import with_fields
from purerl.testing.laws.law import law, map_rows, same
from purerl.testing.outcome import Outcome, learn, run, steps, units
from purerl.testing.perturbations import compact, exaggerate, pad, poison, rename, take

__all__ = [
    "compaction_invariance",
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
    """More columns, and a row without a token, change nothing, whatever they hold."""
    rows, time = batch["mask"].shape
    found = run(algorithm, pad(batch))
    same(run(algorithm, batch), map_rows(found, lambda value: value[:rows] if value.ndim == 1 else value[:rows, :time]))


@law
def compaction_invariance(algorithm: Algorithm, batch: TensorDict) -> None:
    """Without the tokens between action tokens, their rewards folded back, action tokens get the same."""
    compacted, origin = compact(batch)
    action = compacted["action"]

    def acting(value: Tensor) -> Tensor:
        return value * action.reshape(action.shape + (1,) * (value.ndim - 2))

    expected = map_rows(run(algorithm, batch), lambda value: value if value.ndim == 1 else acting(take(value, origin)))
    same(expected, map_rows(run(algorithm, compacted), lambda value: value if value.ndim == 1 else acting(value)))


@law
def permutation_equivariance(algorithm: Algorithm, batch: TensorDict) -> None:
    """Rows in another order get the same in that order."""
    order = torch.randperm(len(batch["row"]), generator=torch.Generator().manual_seed(0))
    same(map_rows(run(algorithm, batch), lambda value: value[order]), run(algorithm, batch[order]))


@law
def masked_row_invariance(algorithm: Algorithm, batch: TensorDict) -> None:
    """Rows in which nothing counts can as well be left out, of their groups too."""
    counts = batch["mask"].any(-1)
    if counts.any():
        same(map_rows(run(algorithm, batch), lambda value: value[counts]), run(algorithm, batch[counts]))


@law
def group_label_invariance(algorithm: Algorithm, batch: TensorDict) -> None:
    """Other labels, of any sign and size and in any order, give the same."""
    same(run(algorithm, batch), run(algorithm, rename(batch)))


@law
def masked_token_invariance(algorithm: Algorithm, batch: TensorDict) -> None:
    """NaN where nothing may be read changes neither a value nor a gradient.

    Up to the advantage that is outside action tokens, and in rows where nothing counts; only a reward may lie on any
    token of the other rows. For an objective it is wherever nothing counts.
    """
    counts = batch["mask"].any(-1, keepdim=True)
    poisoned = poison(batch, batch["action"] & counts)
    if "reward" in batch.keys():
        poisoned = with_fields(poisoned, reward=batch["reward"].where(batch["attention_mask"] & counts, torch.nan))
    same(run(algorithm, batch), run(algorithm, poisoned))
    for objective, step in steps(algorithm, batch):
        same(learn(objective, step), learn(objective, poison(step, step["mask"])))


@law
def group_independence(algorithm: Algorithm, batch: TensorDict) -> None:
    """What happens in one group changes neither a value nor a gradient of the others, however extreme it is."""
    apart = batch["group"] != batch["group"][0]
    one, other = (run(algorithm, b) for b in (batch, exaggerate(batch, ~apart)))
    same(*(Outcome(map_rows(outcome, lambda value: value[apart]).rows, {}, {}) for outcome in (one, other)))


# --- how a step is cut -------------------------------------------------------------------------------------------


@law
def microbatch_invariance(algorithm: Algorithm, batch: TensorDict) -> None:
    """The units of a step one by one, trimmed to their own width, add up to the step in value and gradient."""
    for objective, step in steps(algorithm, batch):
        same(learn(objective, step)._replace(metrics={}), learn(objective, step, units)._replace(metrics={}))


@law
def rank_invariance(algorithm: Algorithm, batch: TensorDict) -> None:
    """Units dealt to ranks in any order, one of which gets none, add up to the step: groups may straddle ranks."""
    for objective, step in steps(algorithm, batch):
        same(learn(objective, step)._replace(metrics={}), learn(objective, step, _dealt)._replace(metrics={}))


def _dealt(objective: Objective, step: TensorDict) -> list[TensorDict]:
    label = step[objective.unit]
    known = label.unique()
    ticket = torch.randperm(len(known), generator=torch.Generator().manual_seed(0)) % 2
    return [step[torch.isin(label, known[ticket == rank])] for rank in range(3)]


@law
def metrics_merge(algorithm: Algorithm, batch: TensorDict) -> None:
    """The merged metrics of the parts of a step are the metrics of the step."""
    for objective, step in steps(algorithm, batch):
        expected = Outcome({}, {}, learn(objective, step).metrics)
        for cut in (units, _dealt):
            same(expected, Outcome({}, {}, learn(objective, step, cut).metrics))
