"""What an algorithm touches: what it declares, and nothing else. It is a function, and it is data."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tensordict import TensorDict

from purerl.algos.algebra import Algorithm, Objective, describe, fingerprint
from purerl.batch import STRUCTURE
from purerl.testing.laws.law import law, same
from purerl.testing.other_process import fingerprint_elsewhere
from purerl.testing.outcome import run, tensors
from purerl.testing.perturbations import cast

__all__ = [
    "dtype_preserved",
    "inputs_unchanged",
    "no_hidden_state",
    "picklable",
    "reads_are_declared",
]


@law
def reads_are_declared(algorithm: Algorithm, batch: TensorDict) -> None:
    """It runs on what it declares, and on nothing less: a field that nothing reads is computed for nothing."""
    run(algorithm, batch)
    for name, fewer in _one_fewer(algorithm):
        try:
            run(fewer, batch)
        except KeyError:
            continue
        raise AssertionError(f"{name!r} is declared, but nothing reads it")


def _one_fewer(algorithm: Algorithm) -> Iterator[tuple[str, Algorithm]]:
    yield from _leave_one_out(algorithm, "reads")
    for place in ("before", "objectives"):
        objectives = getattr(algorithm, place)
        for index, objective in enumerate(objectives):
            for name, fewer in _leave_one_out(objective, "reads", "outputs", "metric_outputs"):
                yield name, algorithm._replace(**{place: (*objectives[:index], fewer, *objectives[index + 1 :])})


def _leave_one_out(value: Any, *lists: str) -> Iterator[tuple[str, Any]]:
    for kind in lists:
        names = getattr(value, kind)
        for left_out in set(names) - set(STRUCTURE):
            yield left_out, value._replace(**{kind: tuple(name for name in names if name != left_out)})


@law
def inputs_unchanged(algorithm: Algorithm, batch: TensorDict) -> None:
    """No function changes what it is given, not by a bit and not by a field."""
    guarded = algorithm._replace(
        select=_guard(algorithm.select),
        advantage=algorithm.advantage._replace(apply=_guard(algorithm.advantage.apply)),
        before=tuple(map(_guard_objective, algorithm.before)),
        objectives=tuple(map(_guard_objective, algorithm.objectives)),
    )
    run(guarded, batch)


def _guard_objective(objective: Objective) -> Objective:
    terms = tuple(t._replace(loss=_guard(t.loss), reduce=_guard(t.reduce)) for t in objective.terms)
    return objective._replace(prepare=_guard(objective.prepare), metrics=_guard(objective.metrics), terms=terms)


def _guard(function: Callable) -> Callable:
    def guarded(*args: Any) -> Any:
        before = _bits(args)
        result = function(*args)
        assert _bits(args) == before, f"an argument of {describe(function)} is not what it was before the call"
        return result

    return guarded


def _bits(args: tuple) -> list:
    fields = [list(arg.keys()) for arg in args if isinstance(arg, TensorDict)]
    return [*fields, *(tensor.detach().numpy().tobytes() for tensor in tensors(args))]


@law
def no_hidden_state(algorithm: Algorithm, batch: TensorDict) -> None:
    """The same batch gives the same, to the bit: chance and memory come in as fields and as state."""
    same(run(algorithm, batch), run(algorithm, batch), tolerance=0.0)


@law
def dtype_preserved(algorithm: Algorithm, batch: TensorDict) -> None:
    """Every float that comes out has the dtype of those that went in."""
    for dtype in (torch.float32, torch.float64):
        rows, totals, metrics = run(algorithm, cast(batch, dtype))
        for name, value in {**rows, **totals, **metrics}.items():
            kept = value.dtype == dtype or not value.is_floating_point() or name.startswith("state")
            assert kept, f"{name} is {value.dtype} in a batch of {dtype}"


@law
def picklable(algorithm: Algorithm, batch: TensorDict) -> None:
    """What its pickle holds is equal to it, and another process describes it in the same words."""
    packed = pickle.dumps(algorithm)
    assert pickle.loads(packed) == algorithm, "it is not equal to what its pickle holds"  # noqa: S301
    here, there = fingerprint(algorithm), fingerprint_elsewhere(packed)
    assert here == there, f"another process gives it another fingerprint, {there}, than {here} of {describe(algorithm)}"
