"""Functions that change one part of an algorithm, from which modifiers are composed.

An algorithm is a value of nested tuples and `Bound` functions, so a part of it can be found and replaced.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import takewhile
from typing import Any

from purerl.algos.algebra import Algorithm, Bound, Objective, Term, Transform, bind, chain, stages_of
from purerl.algos.parts import reductions
from purerl.algos.parts.adaptive import with_coefficient
from purerl.algos.parts.corrections import _correct
from purerl.algos.parts.metrics import _token_means
from purerl.algos.parts.shaping import mask_truncated_rows
from purerl.algos.parts.transforms import whitening
from purerl.algos.parts.whiten import whiten
from purerl.errors import ConfigError

__all__ = [
    "LIKE_POLICY",
    "TERM_REDUCTIONS",
    "adapt_term",
    "add_reads",
    "add_scales",
    "change_policy",
    "change_surrogate",
    "contains",
    "insert_term",
    "is_whitened",
    "map_bound",
    "masks_truncated_rows",
    "policy_of",
    "prepend_transform",
    "reduction_of",
    "report_coefficient",
    "require_advantage",
    "require_field",
    "surrogate_of",
    "without_metric",
]


def map_bound(value: Any, change: Callable[[Bound], Any]) -> Any:
    """`value` with `change` applied to every `Bound` function in it, inner ones first.

    >>> from purerl.algos.algebra import bind
    >>> map_bound((bind(max, key=bind(len)),), lambda bound: "len" if bound.function is len else bound)
    (Bound(function=<built-in function max>, keywords=(('key', 'len'),)),)
    """
    if not isinstance(value, tuple):
        return value
    items = [map_bound(item, change) for item in value]
    changed = type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return change(changed) if isinstance(changed, Bound) else changed


def contains(value: Any, is_wanted: Callable[[Bound], bool]) -> bool:
    """Whether `is_wanted` is true for a `Bound` function in `value`.

    >>> from purerl.algos.algebra import bind
    >>> contains((bind(max, key=bind(len)),), lambda bound: bound.function is len)
    True
    """
    if isinstance(value, Bound) and is_wanted(value):
        return True
    return isinstance(value, tuple) and any(contains(item, is_wanted) for item in value)


def policy_of(algorithm: Algorithm) -> Objective:
    """The objective of the policy. Raises ConfigError if there is none."""
    for objective in algorithm.objectives:
        if objective.role == "policy":
            return objective
    raise ConfigError("has no effect", got="an algorithm that trains no policy", need="an objective of the policy")


def surrogate_of(algorithm: Algorithm) -> Term:
    """The term ``policy`` of the policy's objective. Raises ConfigError if there is none."""
    terms = policy_of(algorithm).terms
    for term in terms:
        if term.name == "policy":
            return term
    got = f"the loss {' + '.join(term.name for term in terms)}"
    raise ConfigError("has no effect", got=got, need="an algorithm with a policy gradient or a surrogate of it")


def change_policy(algorithm: Algorithm, change: Callable[[Objective], Objective]) -> Algorithm:
    """`algorithm` with `change` applied to the objective of the policy. Raises ConfigError as `policy_of`."""
    policy = policy_of(algorithm)
    objectives = tuple(change(o) if o is policy else o for o in algorithm.objectives)
    return algorithm._replace(objectives=objectives)


def change_surrogate(algorithm: Algorithm, change: Callable[[Term], Term], *reads: str) -> Algorithm:
    """`algorithm` with `change` applied to the term ``policy``; `reads` are the fields that the new term also reads.

    Raises: ConfigError as `surrogate_of`.
    """
    surrogate = surrogate_of(algorithm)

    def changed(policy: Objective) -> Objective:
        terms = tuple(change(term) if term is surrogate else term for term in policy.terms)
        return add_reads(policy._replace(terms=terms), *reads)

    return change_policy(algorithm, changed)


def add_reads(part: Any, *reads: str) -> Any:
    """`part`, an `Algorithm` or an `Objective`, which also reads `reads`."""
    return part._replace(reads=tuple(dict.fromkeys((*part.reads, *reads))))


def insert_term(policy: Objective, term: Term, *reads: str) -> Objective:
    """`policy` with one more term, which reads `reads`. Raises ConfigError if it has a term of this name."""
    if any(term.name == other.name for other in policy.terms):
        raise ConfigError("has no effect", got=f"a loss that has the term {term.name!r}", need="a loss without it")
    return add_reads(policy._replace(terms=(*policy.terms, term)), *reads)


LIKE_POLICY = "policy"
"""The name of a reduction that is that of the policy loss."""

TERM_REDUCTIONS = (LIKE_POLICY, *(name for name in reductions.__all__ if name != "constant_norm"))
"""Reductions of a term beside the policy loss: those without a length."""


def reduction_of(policy: Objective, by: str = LIKE_POLICY) -> dict[str, Any]:
    """Arguments of `Term` for the reduction `by`, one of `TERM_REDUCTIONS`; or that of the first term of `policy`."""
    if by != LIKE_POLICY:
        return {"reduce": getattr(reductions, by)}
    first = policy.terms[0]
    return {"reduce": first.reduce, "scales": first.scales, "follows_policy": True}


def adapt_term(algorithm: Algorithm, name: str, field: str, coefficient: Transform) -> Algorithm:
    """`algorithm` with the field `field` in place of the absolute weight of the policy's term `name`.

    `coefficient` is the transform that writes `field`.
    """

    def adapted(policy: Objective) -> Objective:
        terms = (_with_scale(term, field) if term.name == name else term for term in policy.terms)
        return policy._replace(terms=tuple(terms))

    return report_coefficient(prepend_transform(change_policy(algorithm, adapted), coefficient), field)


def _with_scale(term: Term, field: str) -> Term:
    return add_scales(term._replace(weight=math.copysign(1.0, term.weight)), field)


def add_scales(term: Term, *fields: str) -> Term:
    """`term` with `fields` among its scales, in the order of their names."""
    return term._replace(scales=tuple(sorted({*term.scales, *fields})))


def report_coefficient(algorithm: Algorithm, field: str) -> Algorithm:
    """`algorithm` with the metric `field` of the policy: the coefficient of that name."""

    def reported(policy: Objective) -> Objective:
        return add_reads(policy._replace(metrics=with_coefficient(policy.metrics, field)), field)

    return change_policy(algorithm, reported)


def without_metric(objective: Objective, name: str) -> Objective:
    """`objective` without the mean `name` among its metrics, and without the output that only this metric reads.

    >>> from purerl.algos import grpo
    >>> without_metric(grpo.algorithm().objectives[0], "entropy").metric_outputs
    ()
    """
    outputs = tuple(output for output in objective.metric_outputs if output != name)
    return objective._replace(metrics=_without_mean(objective.metrics, name), metric_outputs=outputs)


def _without_mean(metrics: Callable, name: str) -> Callable:
    def changed(bound: Bound) -> Bound:
        if bound.function is not _token_means:
            return bound
        means = dict(bound.keywords)["metrics"]
        return bind(_token_means, metrics=tuple(mean for mean in means if mean[0] != name))

    return map_bound(metrics, changed)


def require_field(algorithm: Algorithm, name: str, need: str) -> None:
    """Raise ConfigError if the estimator of `algorithm` does not read the field `name`."""
    if name not in algorithm.reads:
        raise ConfigError("has no effect", got=f"an algorithm whose advantage does not read {name!r}", need=need)


def require_advantage(algorithm: Algorithm) -> None:
    """Raise ConfigError if the policy loss of `algorithm` does not read the field ``advantage``."""
    if "advantage" not in policy_of(algorithm).reads:
        need = "an algorithm that computes advantages"
        raise ConfigError("has no effect", got="a policy loss without an advantage", need=need)


def masks_truncated_rows(algorithm: Algorithm) -> bool:
    """Whether `mask_truncated_rows` is a part of the advantage of `algorithm`."""
    return contains(algorithm.advantage, lambda bound: bound == mask_truncated_rows.apply)


def prepend_transform(algorithm: Algorithm, transform: Transform) -> Algorithm:
    """`algorithm` with `transform` before the stages of its advantage, but after those that mask rows out.

    Rows that `mask_truncated_rows` or a correction masks out have no effect on `transform` either.
    """
    stages = stages_of(algorithm.advantage)
    first = tuple(takewhile(_is_masking, stages))
    masks = (mask_truncated_rows,) if masks_truncated_rows(algorithm) and mask_truncated_rows not in first else ()
    return algorithm._replace(advantage=chain(*first, *masks, transform, *stages[len(first) :]))


def _is_masking(stage: Transform) -> bool:
    return stage == mask_truncated_rows or contains(stage, lambda bound: bound.function is _correct)


def is_whitened(transform: Transform) -> bool:
    """Whether the last stage of `transform` is a `whitening`, and nothing else.

    >>> from purerl.algos import grpo, ppo
    >>> is_whitened(grpo.algorithm().advantage), is_whitened(ppo.algorithm().advantage)
    (False, True)
    """
    last = stages_of(transform)[-1:]
    return contains(last, lambda bound: bound.function is whiten and last == (whitening(**dict(bound.keywords)),))
