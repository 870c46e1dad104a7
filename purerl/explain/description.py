"""An algorithm as text: the calls of its functions, in the order of a training step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import attrs

from purerl.algos.algebra import Algorithm, Bound, Objective, Term, keep_all, outputs_of, reads_of, roles, stages_of
from purerl.batch import FIELDS, STRUCTURE
from purerl.composition import Composition, definition
from purerl.plugins import kind_of

__all__ = ["Need", "call_of", "definitions", "factor_of", "formula_of", "needs_of", "parts", "short_name"]


def parts(algorithm: Algorithm) -> Iterator[tuple[str, str]]:
    """(purpose, call) of each function of `algorithm`, in the order in which a training step calls them."""
    if algorithm.select is not keep_all:
        yield "rows that are kept", call_of(algorithm.select)
    yield from _losses(algorithm.before)
    yield from (("on the whole batch", call_of(stage.apply)) for stage in stages_of(algorithm.advantage))
    yield from _losses(algorithm.objectives)


def _losses(objectives: tuple[Objective, ...]) -> Iterator[tuple[str, str]]:
    for objective in objectives:
        role = objective.role.replace("_", " ")
        if isinstance(objective.prepare, Bound):
            yield f"before each step of the {role}", call_of(objective.prepare)
        yield from ((f"loss of the {role}", _term(term)) for term in objective.terms)


def _term(term: Term) -> str:
    return f"{call_of(term.reduce)} of {factor_of(term)}{call_of(term.loss)}"


def factor_of(term: Term) -> str:
    """The factor of the loss of `term`: its weight, and its scales."""
    weight = {1.0: "", -1.0: "-"}.get(term.weight, f"{term.weight:g} * ")
    return weight + "".join(f"{name} * " for name in term.scales)


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
        case "_write_coefficient", {"field": field, "adapt": adapt}:
            return f"{field} = {call_of(adapt)}"
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


def short_name(address: str) -> str:
    """The name of the equation that the function at `address` computes.

    A function of a batch has the name of its function of tensors, with an underscore before it or ``_of`` after it.

    >>> short_name("purerl.algos.parts.policy.clip_surrogate_of"), short_name("purerl.algos.parts.values._value_loss")
    ('clip_surrogate', 'value_loss')
    """
    return address.rpartition(".")[2].lstrip("_").removesuffix("_of")


def formula_of(composition: Composition) -> str:
    """`composition` as a sum of an algorithm and its modifiers, with their settings.

    These are the settings that differ from their defaults, and the main field of each modifier.

    >>> from purerl.algos import grpo
    >>> from purerl.algos.modifiers import bypass, kl_loss
    >>> formula_of(Composition(grpo.Config(clip_high=0.28), (kl_loss.Config(), bypass.Config())))
    'grpo(clip_high=0.28) + kl_loss(coef=0.001) + bypass'
    """
    return " + ".join(
        [_plugin(composition.base, main=0), *(_plugin(config, main=1) for config in composition.modifiers)]
    )


def _plugin(config: Any, *, main: int) -> str:
    """The kind of a Config, with its first `main` settings and those that differ from their defaults."""
    fields = attrs.fields(type(config))
    shown = [*fields[:main], *(field for field in fields[main:] if getattr(config, field.name) != field.default)]
    arguments = ", ".join(_keywords({field.name: getattr(config, field.name) for field in shown}))
    return f"{kind_of(config)}({arguments})" if arguments else kind_of(config)


def definitions(config: Any) -> Iterator[tuple[str, str]]:
    """(name, formula) of the algorithm with the Config `config`, if it is a composition, and of those it consists of.

    >>> from purerl.algos import luspo
    >>> list(definitions(luspo.Config()))
    [('luspo', 'gspo(clip_low=0.002, clip_high=0.0025) + reduction(by=sequence_mean_of_token_sum)')]
    """
    composition = definition(config)
    if composition is not None:
        yield kind_of(config), formula_of(composition)
        yield from definitions(composition.base)


class Need(NamedTuple):
    """A model that an algorithm needs, with its outputs, or a field that the run has to supply, with its meaning."""

    name: str
    use: str
    is_model: bool


def needs_of(algorithm: Algorithm) -> Iterator[Need]:
    """Requirements of `algorithm`: first the models, then the fields.

    >>> from purerl.algos import grpo
    >>> [need.name for need in needs_of(grpo.algorithm())]
    ['a policy', 'reward']
    """
    for role in roles(algorithm, FIELDS):
        yield Need(f"a {role.replace('_', ' ')}", ", ".join(outputs_of(algorithm, role, FIELDS)), is_model=True)
    for field in (FIELDS[name] for name in sorted({*reads_of(algorithm)} - {*STRUCTURE})):
        if field.is_input:
            yield Need(field.name, f"{field.meaning} (written by: {field.writer})", is_model=False)
