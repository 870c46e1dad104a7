"""The composition of an algorithm, as a list of calls of its functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from purerl.algos.algebra import Algorithm, Bound, Objective, Term, Transform, keep_all
from purerl.catalog import short_name

__all__ = ["call_of", "parts"]


def parts(algorithm: Algorithm) -> Iterator[tuple[str, str]]:
    """(purpose, call) of each function of `algorithm`, in the order in which a training step calls them."""
    if algorithm.select is not keep_all:
        yield "rows that are kept", call_of(algorithm.select)
    yield from _losses(algorithm.before)
    yield from (("on the whole batch", step) for step in _steps(algorithm.advantage))
    yield from _losses(algorithm.objectives)


def _losses(objectives: tuple[Objective, ...]) -> Iterator[tuple[str, str]]:
    for objective in objectives:
        role = objective.role.replace("_", " ")
        if isinstance(objective.prepare, Bound):
            yield f"before each step of the {role}", call_of(objective.prepare)
        yield from ((f"loss of the {role}", _term(term)) for term in objective.terms)


def _term(term: Term) -> str:
    factor = "" if term.weight == 1 else f"{term.weight:g} * "
    return f"{factor}{call_of(term.reduce)} of {call_of(term.loss)}"


def _steps(transform: Transform) -> Iterator[str]:
    """The transforms of a chain, in order."""
    match transform.apply:
        case Bound(function, (("applies", applies),)) if function.__name__ == "_chain_apply":
            for apply in applies:
                yield from _steps(transform._replace(apply=apply))
        case apply:
            yield call_of(apply)


def call_of(value: Any) -> str:
    """`value` as a call: functions have their short names, and the fields that are bound to them are arguments.

    >>> from purerl.algos.algebra import of_fields, stateless, write_field
    >>> call_of(stateless(write_field("ratio", of_fields(max, "logp", "old_logp", default=0.5))).apply)
    'ratio = max(logp, old_logp, default=0.5)'
    """
    match value:
        case Bound(function, keywords):
            return _call(function, dict(keywords))
        case tuple():
            return f"({', '.join(map(call_of, value))})"
        case float():
            return f"{value:g}"
        case _:
            return _name(value) if callable(value) else str(value)


def _call(function: Callable, keywords: dict[str, Any]) -> str:
    match function.__name__, keywords:
        case "_stateless", {"function": inner}:
            return call_of(inner)
        case "_write_field", {"field": field, "function": inner}:
            return f"{field} = {call_of(inner)}"
        case "_call_on_fields", {"function": Bound(inner), "fields": (field,)} if inner.__name__ == "_field_value":
            return field
        case "_call_on_fields", {"function": Bound(inner, settings), "fields": fields}:
            return f"{_name(inner)}({', '.join([*fields, *_keywords(dict(settings))])})"
        case _:
            return f"{_name(function)}({', '.join(_keywords(keywords))})"


def _keywords(keywords: dict[str, Any]) -> Iterator[str]:
    return (f"{name}={call_of(value)}" for name, value in keywords.items())


def _name(function: Callable) -> str:
    return short_name(getattr(function, "__name__", repr(function)))
