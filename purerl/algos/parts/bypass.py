"""Policies whose rows need not be scored before an update, because what they would score is at hand.

    bypassed   the policy that sampled takes the place of the one that the update begins with
    unmoved    in the only optimizer step of an update, the model is still the one that the update began with

Each saves a forward pass over every row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tensordict import TensorDict

from purerl.algos.algebra import Algorithm, Bound, Objective, State, Transform, bind, unchanged
from purerl.batch import with_fields

__all__ = ["bypass_old_logp", "use_current_outputs"]

_SAMPLER = (("old_logp", "rollout_logp"),)


def bypass_old_logp(algorithm: Algorithm) -> Algorithm:
    """`algorithm` with `rollout_logp` wherever it reads `old_logp`.

    Where a sampler's log-probabilities can be trusted, the ratio may be of the policy now and the one that sampled, and
    one clip bounds both how stale a row is and how far an update goes.
    """
    return algorithm._replace(
        reads=_renamed(algorithm.reads),
        advantage=Transform(algorithm.advantage.init, bind(_apply, apply=algorithm.advantage.apply)),
        objectives=tuple(map(_bypassed, algorithm.objectives)),
    )


def _renamed(reads: tuple[str, ...]) -> tuple[str, ...]:
    names = dict(_SAMPLER)
    return tuple(dict.fromkeys(names.get(name, name) for name in reads))


def _bypassed(objective: Objective) -> Objective:
    prepare = bind(_prepare, prepare=objective.prepare)
    return _reading(objective, _SAMPLER)._replace(reads=_renamed(objective.reads), prepare=prepare)


def _apply(state: State, batch: TensorDict, *, apply: Callable) -> tuple[State, TensorDict]:
    state, after = apply(state, _with(batch, _SAMPLER))
    return state, _restored(after, batch)


def _prepare(batch: TensorDict, *, prepare: Callable) -> TensorDict:
    return _restored(prepare(_with(batch, _SAMPLER)), batch)


def _restored(after: TensorDict, before: TensorDict) -> TensorDict:
    """`after`, with the `old_logp` of `before` if it had one: what stands around the algorithm may read it."""
    return with_fields(after, old_logp=before["old_logp"]) if "old_logp" in before.keys() else after.exclude("old_logp")


def use_current_outputs(objective: Objective, fields: Mapping[str, str]) -> Objective:
    """`objective` with ``sg(output)`` wherever its terms and metrics read one of `fields`, field -> output.

    With ``{"old_logp": "logp"}``: where an update is one optimizer step, both are of the same policy. An objective that
    prepares its step is left as it is, for it prepares before any output is there.
    """
    found = {name: output for name, output in fields.items() if name in objective.reads}
    if not found or objective.prepare is not unchanged or not {*found.values()} <= {*objective.outputs}:
        return objective
    reads = tuple(name for name in objective.reads if name not in found)
    return _reading(objective, tuple(found.items()))._replace(reads=reads)


# --- reading one field for another -------------------------------------------------------------------------------


def _reading(objective: Objective, fields: tuple[tuple[str, str], ...]) -> Objective:
    def bound(function: Callable) -> Bound:
        return bind(_read, function=function, fields=fields)

    terms = tuple(term._replace(loss=bound(term.loss)) for term in objective.terms)
    return objective._replace(terms=terms, metrics=bound(objective.metrics))


def _read(batch: TensorDict, *, function: Callable, fields: tuple[tuple[str, str], ...]) -> Any:
    return function(_with(batch, fields))


def _with(batch: TensorDict, fields: tuple[tuple[str, str], ...]) -> TensorDict:
    return with_fields(batch, **{name: batch[source].detach() for name, source in fields if source in batch.keys()})
