"""A summary of every algorithm and of every modifier, computed from their modules."""

from __future__ import annotations

import inspect
import re
from typing import Any

import attrs
from attrs import frozen

from purerl.algos import algebra
from purerl.algos.algebra import describe
from purerl.description import needs_of, short_name
from purerl.plugins import find, names

__all__ = ["Entry", "ModifierEntry", "catalog", "equations", "modifiers", "sources"]

_PAPER = re.compile(r"\d{4}\.\d{5}")
_SOURCES = re.compile(r"^Sources?: (.+?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL)
_FUNCTION = re.compile(r"\bpurerl(?:\.\w+)+")
_WRAPPERS = {"purerl.algos.parts.transforms._outcome_advantage", "purerl.algos.algebra._field_value"}


@frozen
class Entry:
    """An algorithm with its default settings.

    papers                   arXiv numbers
    advantage, loss, reduce  names of the functions that it consists of
    needs                    models beside the policy, and fields that the run must supply
    """

    name: str
    title: str
    papers: tuple[str, ...]
    advantage: tuple[str, ...]
    loss: tuple[str, ...]
    reduce: tuple[str, ...]
    needs: tuple[str, ...]


@frozen
class ModifierEntry:
    """A modifier with its default settings.

    title     what it does: the first sentence of its docstring
    settings  (name, default) of each setting; the first one is the main field
    papers    arXiv numbers
    """

    name: str
    title: str
    settings: tuple[tuple[str, Any], ...]
    papers: tuple[str, ...]


def catalog() -> list[Entry]:
    """The entries of all algorithms that have a short name."""
    return [_entry(name, find("algorithm", name)) for name in names("algorithm")]


def _entry(name: str, module: Any) -> Entry:
    algorithm = module.algorithm(module.Config())
    title, *_ = (module.__doc__ or name).splitlines()
    terms = [term for objective in algorithm.objectives for term in objective.terms]
    return Entry(
        name=name,
        title=title.partition(":")[0].rstrip("."),
        papers=tuple(_PAPER.findall(title)),
        advantage=_short_names(algorithm.select, algorithm.advantage.apply),
        loss=_short_names(*(term.loss for term in terms)),
        reduce=_short_names(*(term.reduce for term in terms)),
        needs=tuple(need.name for need in needs_of(algorithm) if need.name != "a policy"),
    )


def modifiers() -> list[ModifierEntry]:
    """The entries of all modifiers that have a short name."""
    plugins = ((name, find("modifier", name)) for name in names("modifier"))
    return [
        ModifierEntry(
            name=name,
            title=re.split(r"(?<=\.)\s", inspect.getdoc(module) or name, maxsplit=1)[0],
            settings=tuple((field.name, field.default) for field in attrs.fields(module.Config)),
            papers=tuple(dict.fromkeys(_PAPER.findall(sources(module)))),
        )
        for name, module in plugins
    ]


def sources(module: Any) -> str:
    """What the docstring of `module` has after ``Source:`` or ``Sources:``, in one line."""
    found = _SOURCES.search(inspect.getdoc(module) or "")
    return " ".join(found[1].split()) if found else ""


def _short_names(*parts: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(short_name, equations(*parts))))


def equations(*parts: Any) -> tuple[str, ...]:
    """The addresses of the functions in `parts` of an algorithm, without those that only combine other functions.

    >>> from purerl.algos.parts.policy import token_level_ratio
    >>> equations(token_level_ratio)
    ('purerl.algos.parts.surrogates.token_ratio',)
    """
    addresses = (address for part in parts for address in _FUNCTION.findall(describe(part)))
    combinators = f"{algebra.__name__}."
    return tuple(dict.fromkeys(a for a in addresses if a not in _WRAPPERS and not a.startswith(combinators)))
