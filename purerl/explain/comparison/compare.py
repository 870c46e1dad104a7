"""The effect of each difference between two algorithms, and of all of them, on a batch."""

from __future__ import annotations

from typing import NamedTuple

from purerl.algos.algebra import Algorithm, select_rows
from purerl.errors import InputError
from purerl.explain.comparison.changes import NOTHING, aligned, changes, fields_to_compare, policy_of, texts_of
from purerl.explain.comparison.outcomes import Computation, Effect, advantages_of, effect_of, outcome_of
from purerl.types import TensorDict

__all__ = ["Difference", "compare"]


class Difference(NamedTuple):
    """A part in which two algorithms differ: its text in each, and the effect of this difference alone.

    There is no effect if the part cannot be exchanged alone, because another part writes what it reads.
    """

    part: str
    first: str
    second: str
    effect: Effect | None


def compare(first: Algorithm, second: Algorithm, batch: TensorDict) -> tuple[list[Difference], Effect]:
    """The differences of `second` from `first`, and the effect of all of them.

    `batch` needs the fields that either algorithm reads, and the outputs of the policy. Losses of other models, such as
    a critic, are compared as text. They do not change the step of the policy.

    Raises: InputError if a field is missing, and if one of the two has no policy.
    """
    missing = [name for name in fields_to_compare(first, second) if name not in batch.keys()]
    if missing:
        raise InputError("a batch", got=f"no field {', '.join(missing)}", need="the fields of both algorithms")
    first, second = aligned(first, second)
    before = _result(first, batch)
    ours, theirs = dict(texts_of(first)), dict(texts_of(second))
    differences = [
        Difference(part, ours.get(part, NOTHING), theirs.get(part, NOTHING), _alone(before, changed, batch))
        for part, changed in changes(first, second).items()
    ]
    return differences, effect_of(before, _result(second, batch))


def _result(algorithm: Algorithm, batch: TensorDict) -> Computation:
    keep = select_rows(algorithm, batch)
    _, rows = advantages_of(algorithm, algorithm.advantage.init(), batch[keep])
    return outcome_of(algorithm, rows, keep)


def _alone(before: Computation, changed: Algorithm, batch: TensorDict) -> Effect | None:
    if not policy_of(changed).terms:
        return None
    try:
        return effect_of(before, _result(changed, batch))
    except KeyError:  # a field that another part of the second algorithm writes
        return None
