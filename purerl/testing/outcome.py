"""The results of an algorithm on a batch, as flat dictionaries of tensors that can be compared.

`run` calls the functions of `purerl.algos.algebra` in the order of the training loop and the trainer. Each stage
receives only the fields that are declared for it. An optimizer step is evaluated as one part or split into parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Algorithm, Objective, Weighted, compute_advantages, merge, select_rows
from purerl.batch import OPTIONAL_STRUCTURE, ROW_FIELDS, STRUCTURE, select_fields, with_fields
from purerl.testing.plain_loss import PlainLoss, loss_of_part, prepare

__all__ = [
    "Difference",
    "Differentiate",
    "Outcome",
    "Split",
    "autograd_gradients",
    "find_difference",
    "first_difference",
    "flatten_tensors",
    "functional_gradients",
    "no_split",
    "run",
    "run_advantage",
    "run_objective",
    "split_by_unit",
    "steps",
]


class Outcome(NamedTuple):
    """The results of an algorithm, by a name that describes each.

    rows      tensors [rows] or [rows, time]: the selected rows, the fields that the advantage stage writes, gradients
    totals    tensors of any other shape: the state of the transform, losses
    metrics   the totals and weights of the metrics
    """

    rows: dict[str, Tensor]
    totals: dict[str, Tensor]
    metrics: dict[str, Tensor]


# --- splitting a step --------------------------------------------------------------------------------------------


Split = Callable[[Objective, TensorDict], Sequence[TensorDict]]
"""A function that splits an optimizer step into parts."""


def no_split(objective: Objective, step: TensorDict) -> list[TensorDict]:
    """The step as one part."""
    return [step]


def split_by_unit(objective: Objective, step: TensorDict) -> list[TensorDict]:
    """One part for each unit of the objective (row or group), without the padding that the part does not need."""
    label = step[objective.unit]
    return [_trim(step[label == value]) for value in label.unique()]


def _trim(part: TensorDict) -> TensorDict:
    width = int(part["attention_mask"].any(0).sum())
    return with_fields(part, **{name: value[:, :width] for name, value in part.items() if name not in ROW_FIELDS})


# --- gradients ---------------------------------------------------------------------------------------------------


Differentiate = Callable[[Callable, dict[str, Tensor]], tuple[dict[str, Tensor], Tensor, Any]]
"""(function, inputs) -> (gradients by name, loss, auxiliary value); function(inputs) -> (loss, auxiliary value)."""


def autograd_gradients(losses: Callable, outputs: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor, Any]:
    """Gradients by `torch.autograd.grad`. An output that the loss does not depend on has no entry."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in outputs.items()}
    loss, aux = losses(leaves)
    if not loss.requires_grad:
        return {}, loss, aux
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return {name: g for name, g in zip(leaves, gradients, strict=True) if g is not None}, loss.detach(), aux


def functional_gradients(losses: Callable, outputs: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor, Any]:
    """Gradients by `torch.func.grad_and_value`, which works under `torch.func.vmap` and `torch.compile`."""
    gradients, (loss, aux) = torch.func.grad_and_value(losses, has_aux=True)(outputs)
    return gradients, loss, aux


# --- running -----------------------------------------------------------------------------------------------------


def run(algorithm: Algorithm, batch: TensorDict, differentiate: Differentiate = autograd_gradients) -> Outcome:
    """Run selection, the advantage and every objective with its gradients.

    The selected rows are reported, but the rest runs on the unselected batch: a law holds on every batch, so also on
    the selected rows.
    """
    prepared, after = _run_advantage(algorithm, batch)
    learned = [run_objective(*pair, no_split, differentiate) for pair in _steps(algorithm, batch, after)]
    return Outcome(*({n: v for part in kind for n, v in part.items()} for kind in zip(prepared, *learned, strict=True)))


def run_advantage(algorithm: Algorithm, batch: TensorDict) -> Outcome:
    """Run selection and the advantage: the selected rows, the fields that the advantage writes, and its state."""
    return _run_advantage(algorithm, batch)[0]


def _run_advantage(algorithm: Algorithm, batch: TensorDict) -> tuple[Outcome, TensorDict]:
    inputs = select_fields(batch, algorithm.reads)
    state, after = compute_advantages(algorithm, algorithm.advantage.init(), inputs)
    # Fields that are read are not results. Neither is `reward`: removing tool tokens changes its positions. Row fields
    # with additional axes are not compared either.
    results = {n: v for n, v in after.items() if n not in ("reward", *algorithm.reads)}
    written = {n: v for n, v in results.items() if n not in inputs.keys() or v is not inputs[n]}
    fields = {f"field {n}": v for n, v in written.items() if not (n in ROW_FIELDS and v.ndim > 1)}
    states = {f"state[{index}]": value for index, value in enumerate(flatten_tensors(state))}
    return Outcome({"selected rows": select_rows(algorithm, inputs), **fields}, states, {}), after


def steps(algorithm: Algorithm, batch: TensorDict) -> list[tuple[Objective, TensorDict]]:
    """Each objective with `batch` as its optimizer step, limited to the declared fields and model outputs."""
    return _steps(algorithm, batch, _run_advantage(algorithm, batch)[1])


def _steps(algorithm: Algorithm, batch: TensorDict, after: TensorDict) -> list[tuple[Objective, TensorDict]]:
    stages = [(o, batch) for o in algorithm.before]
    stages += [(o, with_fields(batch, **dict(after.items()))) for o in algorithm.objectives]
    # Not strict: an objective also reads the fields that its `prepare` writes, and those do not exist yet.
    fields = (*STRUCTURE, *OPTIONAL_STRUCTURE)
    return [(o, b.select(*fields, *o.reads, *o.outputs, *o.metric_outputs, strict=False)) for o, b in stages]


def run_objective(
    objective: Objective | PlainLoss,
    step: TensorDict,
    split: Split = no_split,
    differentiate: Differentiate = autograd_gradients,
) -> Outcome:
    """The gradients and the loss of `objective`, summed over the parts of `step`, and the merged metrics."""
    ready, counts = prepare(objective, step.exclude(*objective.outputs, *objective.metric_outputs))
    given = {name: step[name] for name in objective.metric_outputs}
    ready = with_fields(select_fields(ready, objective.reads), **given)

    def losses(outputs: dict[str, Tensor]) -> tuple[Tensor, dict[str, Weighted]]:
        parts = [loss_of_part(objective, part, counts) for part in split(objective, with_fields(ready, **outputs))]
        loss, metrics = zip(*parts, strict=True)
        return torch.stack(loss).sum(0), merge(*metrics)

    gradients, loss, merged = differentiate(losses, {name: step[name] for name in objective.outputs})
    prefix = f"objective {objective.role!r}: "
    return Outcome(
        {f"{prefix}gradient of {name}": value for name, value in gradients.items()},
        {f"{prefix}loss": loss},
        {f"{prefix}{kind} of {n!r}": torch.as_tensor(v) for n, m in merged.items() for kind, v in m._asdict().items()},
    )


# --- comparing ---------------------------------------------------------------------------------------------------


def flatten_tensors(value: Any) -> Iterator[Tensor]:
    """Iterate over the tensors and numbers in `value`, which is a batch or a nested tuple, in order."""
    if isinstance(value, TensorDict):
        value = tuple(value.values())
    if isinstance(value, tuple):
        for part in value:
            yield from flatten_tensors(part)
    elif isinstance(value, Tensor | int | float):
        yield torch.as_tensor(value)


class Difference(NamedTuple):
    """A difference of two outcomes: the name of the entry, a description, and the index of the largest difference.

    Without an index, the entry is a number, or has another shape, or is missing.
    """

    name: str
    text: str
    index: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}{f' at {list(self.index)}' if self.index else ''}{self.text}"


def find_difference(expected: Outcome, actual: Outcome, *, tolerance: float = 1e-9) -> str | None:
    """`first_difference` as a message; None if the outcomes are equal."""
    difference = first_difference(expected, actual, tolerance=tolerance)
    return None if difference is None else str(difference)


def first_difference(expected: Outcome, actual: Outcome, *, tolerance: float = 1e-9) -> Difference | None:
    """The first entry in which two outcomes differ, at its largest difference; None if they are equal.

    Two tensors are equal if no difference exceeds tolerance * max(1, max(abs(expected))).
    """
    for expected_part, actual_part in zip(expected, actual, strict=True):
        for name in {**expected_part, **actual_part}:
            if name not in expected_part:
                return Difference(name, ": got a value, expected none")
            if name not in actual_part:
                return Difference(name, ": got no value, expected one")
            largest = _largest_difference(name, expected_part[name].detach(), actual_part[name].detach(), tolerance)
            if largest is not None:
                return largest
    return None


def _largest_difference(name: str, expected: Tensor, actual: Tensor, tolerance: float) -> Difference | None:
    if expected.shape != actual.shape:
        return Difference(name, f": got the shape {list(actual.shape)}, expected {list(expected.shape)}")
    if not expected.numel():
        return None
    expected, actual = expected.double(), actual.double()
    # NaN differs from every value, including NaN.
    error = (expected - actual).abs().nan_to_num(torch.inf)
    if float(error.max()) <= tolerance * max(1.0, float(expected.abs().max())):
        return None
    index = tuple(int(position) for position in torch.unravel_index(error.argmax(), error.shape))
    values = f"got {float(actual[index]):.6g}, expected {float(expected[index]):.6g}"
    return Difference(name, f": {values} (the largest difference, {float(error[index]):.3g})", index)
