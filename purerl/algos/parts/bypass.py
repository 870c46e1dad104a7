"""Bypass: the policy that sampled, in place of the one that the update begins with.

Where a sampler's log-probabilities can be trusted, the rows need not be scored again before an update. The ratio is
then of the policy now and the one that sampled, and one clip bounds both how stale a row is and how far an update goes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensordict import TensorDict

from purerl.algos.algebra import Algorithm, Objective, State, Transform, bind
from purerl.batch import put

__all__ = ["bypassed"]


def bypassed(algorithm: Algorithm) -> Algorithm:
    """`algorithm` with `rollout_logp` wherever it reads `old_logp`."""
    return algorithm._replace(
        reads=_renamed(algorithm.reads),
        advantage=Transform(algorithm.advantage.init, bind(_bypassed_apply, apply=algorithm.advantage.apply)),
        objectives=tuple(map(_bypassed_objective, algorithm.objectives)),
    )


def _renamed(reads: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys("rollout_logp" if name == "old_logp" else name for name in reads))


def _bypassed_objective(objective: Objective) -> Objective:
    return objective._replace(
        reads=_renamed(objective.reads),
        prepare=bind(_bypassed_prepare, prepare=objective.prepare),
        terms=tuple(term._replace(loss=bind(_bypassed, function=term.loss)) for term in objective.terms),
        metrics=bind(_bypassed, function=objective.metrics),
    )


def _as_old(batch: TensorDict) -> TensorDict:
    return put(batch, old_logp=batch["rollout_logp"]) if "rollout_logp" in batch.keys() else batch


def _bypassed(batch: TensorDict, *, function: Callable) -> Any:
    return function(_as_old(batch))


def _bypassed_prepare(batch: TensorDict, *, prepare: Callable) -> TensorDict:
    return prepare(_as_old(batch)).exclude("old_logp")


def _bypassed_apply(state: State, batch: TensorDict, *, apply: Callable) -> tuple[State, TensorDict]:
    state, after = apply(state, _as_old(batch))
    return state, after.exclude("old_logp")
