"""What an algorithm makes of a batch, flat enough to be compared.

`run` goes through the verbs of `purerl.algos.algebra` as a loop and a trainer would. It hands every stage the fields
that are declared and nothing else, and lets each objective see its step whole or cut into parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import (
    Algorithm,
    Objective,
    Weighted,
    compute_advantages,
    compute_loss,
    merge,
    prepare_step,
    select_rows,
)
from purerl.batch import ROW_FIELDS, STRUCTURE, with_fields

__all__ = [
    "Cut",
    "Differentiate",
    "Outcome",
    "backward",
    "difference",
    "functional",
    "judge",
    "learn",
    "run",
    "steps",
    "tensors",
    "units",
    "whole",
]


class Outcome(NamedTuple):
    """What came out, by names that say what it is.

    rows      [rows] or [rows, time]: the rows that are kept, what the advantage stage wrote, gradients
    totals    of any other shape: the transform's state, losses
    metrics   totals and weights of the metrics
    """

    rows: dict[str, Tensor]
    totals: dict[str, Tensor]
    metrics: dict[str, Tensor]


Cut = Callable[[Objective, TensorDict], Sequence[TensorDict]]
"""How an optimizer step is cut into parts."""


def whole(objective: Objective, step: TensorDict) -> list[TensorDict]:
    """Not at all."""
    return [step]


def units(objective: Objective, step: TensorDict) -> list[TensorDict]:
    """Into units of the objective, rows or groups, each trimmed to its own width."""
    label = step[objective.unit]
    return [_trim(step[label == value]) for value in label.unique()]


def _trim(part: TensorDict) -> TensorDict:
    width = int(part["attention_mask"].any(0).sum())
    return with_fields(part, **{name: value[:, :width] for name, value in part.items() if name not in ROW_FIELDS})


# --- differentiating ---------------------------------------------------------------------------------------------


Differentiate = Callable[[Callable, dict[str, Tensor]], tuple[dict[str, Tensor], Tensor, Any]]
"""From a function of named tensors, which gives a loss and more, to gradients by name, the loss, and what is more."""


def backward(losses: Callable, outputs: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor, Any]:
    """As a trainer does it. What the loss does not depend on has no gradient, rather than one of 0."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in outputs.items()}
    loss, more = losses(leaves)
    if not loss.requires_grad:
        return {}, loss, more
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return {name: g for name, g in zip(leaves, found, strict=True) if g is not None}, loss.detach(), more


def functional(losses: Callable, outputs: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor, Any]:
    """By `torch.func`: so it can be mapped over further axes, and compiled."""
    gradients, (loss, more) = torch.func.grad_and_value(losses, has_aux=True)(outputs)
    return gradients, loss, more


# --- running -----------------------------------------------------------------------------------------------------


def run(algorithm: Algorithm, batch: TensorDict, differentiate: Differentiate = backward) -> Outcome:
    """Select, advantage, and every objective with its gradients.

    Selection is reported and not applied: what it leaves is another batch, and a law holds for every batch.
    """
    judged, after = _judge(algorithm, batch)
    learned = [learn(objective, step, whole, differentiate) for objective, step in _steps(algorithm, batch, after)]
    return Outcome(*({n: v for part in kind for n, v in part.items()} for kind in zip(judged, *learned, strict=True)))


def judge(algorithm: Algorithm, batch: TensorDict) -> Outcome:
    """What comes before learning: which rows are kept, what the advantage stage writes, and its state."""
    return _judge(algorithm, batch)[0]


def _judge(algorithm: Algorithm, batch: TensorDict) -> tuple[Outcome, TensorDict]:
    given = batch.select(*STRUCTURE, *algorithm.reads)
    state, after = compute_advantages(algorithm, algorithm.advantage.init(), given)
    # What was read is no result, nor is a shaped reward: where rewards lie is what compaction changes. Nor are fields
    # with their own axes.
    results = {n: v for n, v in after.items() if n not in ("reward", *algorithm.reads)}
    written = {n: v for n, v in results.items() if n not in given.keys() or v is not given[n]}
    fields = {f"field {n}": v for n, v in written.items() if not (n in ROW_FIELDS and v.ndim > 1)}
    states = {f"state[{index}]": value for index, value in enumerate(tensors(state))}
    return Outcome({"kept": select_rows(algorithm, given), **fields}, states, {}), after


def steps(algorithm: Algorithm, batch: TensorDict) -> list[tuple[Objective, TensorDict]]:
    """Each objective, and `batch` as a step for it: the fields that it declares, and what a model supplies."""
    return _steps(algorithm, batch, _judge(algorithm, batch)[1])


def _steps(algorithm: Algorithm, batch: TensorDict, after: TensorDict) -> list[tuple[Objective, TensorDict]]:
    stages = [(o, batch) for o in algorithm.before]
    stages += [(o, with_fields(batch, **dict(after.items()))) for o in algorithm.objectives]
    # Not strict: what `prepare` writes is among the reads, and is not there yet.
    return [(o, b.select(*STRUCTURE, *o.reads, *o.outputs, *o.metric_outputs, strict=False)) for o, b in stages]


def learn(objective: Objective, step: TensorDict, cut: Cut = whole, differentiate: Differentiate = backward) -> Outcome:
    """The loss of the parts of `step`, those gradients that there are, and the merged metrics."""
    ready, counts = prepare_step(objective, step.exclude(*objective.outputs, *objective.metric_outputs))
    ready = with_fields(
        ready.select(*STRUCTURE, *objective.reads), **{name: step[name] for name in objective.metric_outputs}
    )

    def losses(outputs: dict[str, Tensor]) -> tuple[Tensor, dict[str, Weighted]]:
        parts = [compute_loss(objective, part, counts) for part in cut(objective, with_fields(ready, **outputs))]
        loss, metrics = zip(*parts, strict=True)
        return torch.stack(loss).sum(0), merge(*metrics)

    gradients, loss, merged = differentiate(losses, {name: step[name] for name in objective.outputs})
    named = f"objective {objective.role!r}: "
    return Outcome(
        {f"{named}gradient of {name}": value for name, value in gradients.items()},
        {f"{named}loss": loss},
        {f"{named}{kind} of {n!r}": torch.as_tensor(v) for n, m in merged.items() for kind, v in m._asdict().items()},
    )


# --- comparing ---------------------------------------------------------------------------------------------------


def tensors(value: Any) -> Iterator[Tensor]:
    """The tensors and numbers in `value`, a batch or a tree of tuples, in their order."""
    if isinstance(value, TensorDict):
        value = tuple(value.values())
    if isinstance(value, tuple):
        for part in value:
            yield from tensors(part)
    elif isinstance(value, Tensor | int | float):
        yield torch.as_tensor(value)


def difference(expected: Outcome, found: Outcome, *, tolerance: float = 1e-9) -> str | None:
    """The first thing in which two outcomes differ, and where it differs most; None where nothing does.

    Numbers may differ by `tolerance`, relative to the largest that is expected, or to 1 if that is larger.
    """
    for before, after in zip(expected, found, strict=True):
        for name in {**before, **after}:
            if name not in before or name not in after:
                return f"{name}: " + ("not expected" if name in after else "missing")
            gap = _gap(before[name].detach(), after[name].detach(), tolerance)
            if gap is not None:
                return f"{name}{gap}"
    return None


def _gap(expected: Tensor, found: Tensor, tolerance: float) -> str | None:
    if expected.shape != found.shape:
        return f": expected the shape {list(expected.shape)}, found {list(found.shape)}"
    if not expected.numel():
        return None
    expected, found = expected.double(), found.double()
    # A NaN differs from everything, another NaN included.
    gap = (expected - found).abs().nan_to_num(torch.inf)
    if float(gap.max()) <= tolerance * max(1.0, float(expected.abs().max())):
        return None
    worst = tuple(int(place) for place in torch.unravel_index(gap.argmax(), gap.shape))
    values = f"expected {float(expected[worst]):.6g}, found {float(found[worst]):.6g}"
    return f"{list(worst) or ''}: worst difference {float(gap[worst]):.3g} ({values})"
