"""Algorithms without a forward pass for `old_logp`, because another field holds the same or similar values.

    bypass_old_logp       use the log-probabilities of the rollout policy instead of `old_logp`
    use_current_outputs   use the outputs of the current forward pass instead of scored fields, which is exact in an
                          update of one optimizer step

Each saves one forward pass over every row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from purerl.algos.algebra import Algorithm, Bound, Objective, State, Transform, bind, chain, stages_of, unchanged
from purerl.algos.parts.editing import contains, is_whitened
from purerl.batch import with_fields
from purerl.types import TensorDict

__all__ = ["bypass_old_logp", "is_bypassed", "use_current_outputs"]

_ROLLOUT_SOURCE = (("old_logp", "rollout_logp"),)


def bypass_old_logp(algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with `rollout_logp` instead of `old_logp` wherever it reads `old_logp`.

    The ratio is then between the current policy and the rollout policy, and one clip bounds both the staleness of a row
    and the size of the update. Use it if the log-probabilities of the generator agree with those of the trainer.
    """
    return algorithm._replace(
        reads=_renamed(algorithm.reads),
        advantage=chain(*map(_bypass_stage, stages_of(algorithm.advantage))),
        objectives=tuple(map(_bypass_objective, algorithm.objectives)),
    )


def is_bypassed(loss: Any) -> bool:
    """Whether `loss`, or a function in it, reads another field instead of `old_logp`."""
    return contains(loss, lambda bound: bound.function is _with_substituted_fields)


def _renamed(reads: tuple[str, ...]) -> tuple[str, ...]:
    sources = dict(_ROLLOUT_SOURCE)
    return tuple(dict.fromkeys(sources.get(name, name) for name in reads))


def _bypass_stage(stage: Transform) -> Transform:
    """A whitening reads no `old_logp`. It is not changed, so that modifiers recognize it."""
    return stage if is_whitened(stage) else Transform(stage.init, bind(_apply, apply=stage.apply))


def _bypass_objective(objective: Objective) -> Objective:
    prepare = unchanged if objective.prepare is unchanged else bind(_prepare, prepare=objective.prepare)
    return _with_sources(objective, _ROLLOUT_SOURCE)._replace(reads=_renamed(objective.reads), prepare=prepare)


def _apply(state: State, batch: TensorDict, *, apply: Callable) -> tuple[State, TensorDict]:
    state, after = apply(state, _substitute(batch, _ROLLOUT_SOURCE))
    return state, _restore(after, batch)


def _prepare(batch: TensorDict, *, prepare: Callable) -> TensorDict:
    return _restore(prepare(_substitute(batch, _ROLLOUT_SOURCE)), batch)


def _restore(after: TensorDict, before: TensorDict) -> TensorDict:
    """Put the `old_logp` of `before` back, if it had one: a function around the algorithm may read it."""
    return with_fields(after, old_logp=before["old_logp"]) if "old_logp" in before.keys() else after.exclude("old_logp")


def use_current_outputs(objective: Objective, fields: Mapping[str, str]) -> Objective:
    """Return `objective` with ``sg(output)`` instead of a field in its terms and metrics; `fields` is field -> output.

    With ``{"old_logp": "logp"}``, `old_logp` need not be scored. In an update of one optimizer step both are outputs of
    the same policy. An objective with a `prepare` function is returned unchanged, because `prepare` runs before the
    forward pass. So is an objective that reads none of `fields`, or that lacks one of the outputs.
    """
    sources = {name: output for name, output in fields.items() if name in objective.reads}
    if not sources or objective.prepare is not unchanged or not {*sources.values()} <= {*objective.outputs}:
        return objective
    reads = tuple(name for name in objective.reads if name not in sources)
    return _with_sources(objective, tuple(sources.items()))._replace(reads=reads)


# --- reading one field instead of another ------------------------------------------------------------------------


def _with_sources(objective: Objective, sources: tuple[tuple[str, str], ...]) -> Objective:
    def substituted(function: Callable) -> Bound:
        return bind(_with_substituted_fields, function=function, sources=sources)

    terms = tuple(term._replace(loss=substituted(term.loss)) for term in objective.terms)
    return objective._replace(terms=terms, metrics=substituted(objective.metrics))


def _with_substituted_fields(batch: TensorDict, *, function: Callable, sources: tuple[tuple[str, str], ...]) -> Any:
    return function(_substitute(batch, sources))


def _substitute(batch: TensorDict, sources: tuple[tuple[str, str], ...]) -> TensorDict:
    """Replace fields by their sources. Without its source a field is removed: no function must read the original."""
    present = [(name, source) for name, source in sources if source in batch.keys()]
    batch = with_fields(batch, **{name: batch[source].detach() for name, source in present})
    missing = [name for name, source in sources if name in batch.keys() and source not in batch.keys()]
    return batch.exclude(*missing) if missing else batch
