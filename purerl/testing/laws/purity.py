"""Laws of purity: an algorithm reads what it declares, has no side effects, and can be pickled."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tensordict import TensorDict

from purerl.algos.algebra import Algorithm, Objective, describe, fingerprint
from purerl.batch import STRUCTURE
from purerl.testing.laws.law import assert_same, law
from purerl.testing.other_process import fingerprint_in_other_process
from purerl.testing.outcome import flatten_tensors, run, steps
from purerl.testing.perturbations import cast
from purerl.testing.plain_loss import prepare

__all__ = ["dtype_preserved", "inputs_unchanged", "no_hidden_state", "picklable", "reads_are_declared"]


@law
def reads_are_declared(algorithm: Algorithm, batch: TensorDict) -> None:
    """The algorithm runs on the fields that it declares, and fails if any one of them is missing.

    A run computes every declared field, so an unused declaration can cost a forward pass. Common violations: a field
    that is read but not declared, a field that is declared but not read.
    """
    run(algorithm, batch)
    for name, reduced in _without_each_field(algorithm):
        try:
            run(reduced, batch)
        except KeyError:
            continue
        raise AssertionError(f"field {name!r} is declared, but no function reads it")


def _without_each_field(algorithm: Algorithm) -> Iterator[tuple[str, Algorithm]]:
    """For each declared field: its name, and the algorithm without that declaration."""
    yield from _without_each_name(algorithm, "reads")
    for stage in ("before", "objectives"):
        objectives = getattr(algorithm, stage)
        for index, objective in enumerate(objectives):
            for name, reduced in _without_each_name(objective, "reads", "outputs", "metric_outputs"):
                yield name, algorithm._replace(**{stage: (*objectives[:index], reduced, *objectives[index + 1 :])})


def _without_each_name(value: Any, *attributes: str) -> Iterator[tuple[str, Any]]:
    for attribute in attributes:
        names = getattr(value, attribute)
        for removed in set(names) - set(STRUCTURE):
            yield removed, value._replace(**{attribute: tuple(name for name in names if name != removed)})


@law
def inputs_unchanged(algorithm: Algorithm, batch: TensorDict) -> None:
    """No function of the algorithm changes its arguments, neither a tensor nor the fields of a batch.

    The caller uses the same batch again for the next objective. Common violations: an in-place operation, a field that
    is written into the argument.
    """
    guarded = algorithm._replace(
        select=_guard(algorithm.select),
        advantage=algorithm.advantage._replace(apply=_guard(algorithm.advantage.apply)),
        before=tuple(map(_guard_objective, algorithm.before)),
        objectives=tuple(map(_guard_objective, algorithm.objectives)),
    )
    run(guarded, batch)


def _guard_objective(objective: Objective) -> Objective:
    terms = tuple(t._replace(loss=_guard(t.loss), reduce=_guard(t.reduce)) for t in objective.terms)
    functions = {name: _guard(value) for name, value in objective._asdict().items() if callable(value)}
    return objective._replace(terms=terms, **functions)


def _guard(function: Callable) -> Callable:
    def guarded(*args: Any) -> Any:
        before = _snapshot(args)
        result = function(*args)
        assert _snapshot(args) == before, f"{describe(function)} changed one of its arguments"
        return result

    return guarded


def _snapshot(args: tuple) -> list:
    """The field names of all batches and the bytes of all tensors in `args`."""
    fields = [list(arg.keys()) for arg in args if isinstance(arg, TensorDict)]
    return [*fields, *(tensor.detach().numpy().tobytes() for tensor in flatten_tensors(args))]


@law
def no_hidden_state(algorithm: Algorithm, batch: TensorDict) -> None:
    """Two runs on the same batch give bitwise equal results.

    Random numbers belong in the field `noise`, and memory in the state of the transform. A resumed run can then repeat
    the original run. Common violations: a random number generator in the algorithm, a global variable.
    """
    assert_same(run(algorithm, batch), run(algorithm, batch), tolerance=0.0)


@law
def dtype_preserved(algorithm: Algorithm, batch: TensorDict) -> None:
    """Every float result has the dtype of the float fields of the batch, except the state of the transform.

    So has every field that is written before an optimizer step: a trainer refuses batches of two dtypes. A cast to
    float32 would hide errors in tests that run in float64. Common violation: a Python float times a bool or integer
    tensor, which gives float32.
    """
    for dtype in (torch.float32, torch.float64):
        rows, totals, metrics = run(algorithm, cast(batch, dtype))
        prepared = [prepare(objective, step)[0] for objective, step in steps(algorithm, cast(batch, dtype))]
        written = {f"field {name}": value for step in prepared for name, value in step.items()}
        for name, value in {**written, **rows, **totals, **metrics}.items():
            is_preserved = value.dtype == dtype or not value.is_floating_point() or name.startswith("state")
            assert is_preserved, f"{name}: got {value.dtype}, expected {dtype}, the dtype of the batch"


@law
def picklable(algorithm: Algorithm, batch: TensorDict) -> None:
    """An unpickled copy equals the algorithm, and its fingerprint in another process is the same.

    Another process can then receive the algorithm and identify it. Common violations: a lambda or a local function, a
    `repr` with a memory address.
    """
    packed = pickle.dumps(algorithm)
    assert pickle.loads(packed) == algorithm, "the unpickled copy is not equal to the algorithm"  # noqa: S301
    expected, actual = fingerprint(algorithm), fingerprint_in_other_process(packed)
    assert actual == expected, (
        f"fingerprint in another process: got {actual}, expected {expected}, the fingerprint of {describe(algorithm)}"
    )
