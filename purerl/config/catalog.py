"""What algorithms there are, told from the algorithms themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from attrs import frozen

from purerl.algos import algebra
from purerl.algos.algebra import Algorithm, describe, roles
from purerl.batch import FIELDS
from purerl.config.check import WITHIN, reads_of
from purerl.plugins import find, names

__all__ = ["Entry", "catalog", "equations"]

_FUNCTION = re.compile(r"\bpurerl(?:\.\w+)+")
_PLUMBING = {"purerl.algos.parts.transforms._outcome_advantage", "purerl.algos.algebra._field_value"}


@frozen
class Entry:
    """An algorithm: name, title, its papers (arXiv numbers), what it is made of, and what it needs from a run."""

    name: str
    title: str
    papers: tuple[str, ...]
    advantage: tuple[str, ...]
    loss: tuple[str, ...]
    reduce: tuple[str, ...]
    needs: tuple[str, ...]


def catalog() -> list[Entry]:
    """Every algorithm that has a short name, as its default Config makes it."""
    return [_entry(name, find("algorithm", name)) for name in names("algorithm")]


def _entry(name: str, module: Any) -> Entry:
    algorithm = module.algorithm(module.Config())
    title, *_ = (module.__doc__ or name).splitlines()
    terms = [term for objective in algorithm.objectives for term in objective.terms]
    return Entry(
        name=name,
        title=title.partition(":")[0].rstrip("."),
        papers=tuple(re.findall(r"\d{4}\.\d{5}", title)),
        advantage=_short(algorithm.select, algorithm.advantage.apply),
        loss=_short(*(term.loss for term in terms)),
        reduce=_short(*(term.reduce for term in terms)),
        needs=tuple(_needs(algorithm)),
    )


def _short(*parts: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(address.rpartition(".")[2].lstrip("_") for address in equations(*parts)))


def equations(*parts: Any) -> tuple[str, ...]:
    """The addresses of the functions that `parts` of an algorithm are made of; what only joins them is left out.

    >>> from purerl.algos.parts.policy import token_level_ratio
    >>> equations(token_level_ratio)
    ('purerl.algos.parts.surrogates.token_ratio',)
    """
    found = (address for part in parts for address in _FUNCTION.findall(describe(part)) if address not in _PLUMBING)
    return tuple(dict.fromkeys(address for address in found if not address.startswith(algebra.__name__)))


def _needs(algorithm: Algorithm) -> Iterator[str]:
    yield from (f"a {role.replace('_', ' ')}" for role in roles(algorithm, FIELDS) if role != "policy")
    for name in sorted(reads_of(algorithm)):
        if not FIELDS[name].source and FIELDS[name].writer not in WITHIN:
            yield name
