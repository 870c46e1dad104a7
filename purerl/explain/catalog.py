"""A summary of every algorithm and of every modifier, computed from their modules."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import attrs
from attrs import frozen

from purerl.algos import algebra
from purerl.algos.algebra import describe, reads_of, roles
from purerl.batch import FIELDS
from purerl.explain.description import needs_of, short_name
from purerl.plugins import find, names

__all__ = ["FAMILIES", "Entry", "ModifierEntry", "catalog", "equations", "modifiers", "sources"]

_PAPER = re.compile(r"\d{4}\.\d{5}")
_SOURCES = re.compile(r"^Sources?: (.+?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL)
_FUNCTION = re.compile(r"\bpurerl(?:\.\w+)+")
_WRAPPERS = {"purerl.algos.parts.transforms._outcome_advantage", "purerl.algos.algebra._field_value"}

FAMILIES: Mapping[str, str] = {
    "From a teacher": "The policy is trained to match the log-probabilities of another model.",
    "From data": "These algorithms learn from demonstrations, preference pairs or labels. They use no reward.",
    "With a critic": "A second model estimates the remaining reward at each token.",
    "Policy gradients": "No ratio and no clipping: rows are from the current policy. The baselines differ.",
    "Clipped surrogates": "The loss of PPO, for tokens or for whole rows, with different advantages.",
    "Weighted policy gradients": "A detached weight replaces the clipped ratio of PPO.",
    "Other losses": "Smooth gates, geometric means and regressions.",
}
"""The common properties of the algorithms of each family."""


@frozen
class Entry:
    """An algorithm with its default settings.

    summary                  the title, without the abbreviation that is the name of the algorithm
    papers                   arXiv numbers
    advantage, loss, reduce  names of the functions that it consists of
    needs                    models beside the policy, and fields that the run must supply
    requires                 what not every run has, in words: models beside the policy, pairs, an environment, ...
    """

    name: str
    title: str
    summary: str
    papers: tuple[str, ...]
    advantage: tuple[str, ...]
    loss: tuple[str, ...]
    reduce: tuple[str, ...]
    needs: tuple[str, ...]
    requires: tuple[str, ...]

    @property
    def family(self) -> str:
        """The first of `FAMILIES` that matches, by what the algorithm learns from and then by the policy's loss."""
        matches = {
            "From a teacher": "teacher" in self.requires,
            "From data": not self.advantage,
            "With a critic": "critic" in self.requires,
            "Policy gradients": set(self.loss) == {"policy_gradient"},
            "Clipped surrogates": "clip_surrogate" in self.loss,
            "Weighted policy gradients": "weighted_policy_gradient" in self.loss,
            "Other losses": True,
        }
        return next(family for family, is_match in matches.items() if is_match)


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
    first_line, *_ = (module.__doc__ or name).splitlines()
    title = first_line.partition(":")[0].rstrip(".")
    terms = [term for objective in algorithm.objectives for term in objective.terms]
    models = (role.replace("_", " ") for role in roles(algorithm, FIELDS) if role != "policy")
    read = [field for field in reads_of(algorithm) if FIELDS[field].requires]
    return Entry(
        name=name,
        title=title,
        summary=_without_abbreviation(title, name),
        papers=tuple(_PAPER.findall(first_line)),
        advantage=_short_names(algorithm.select, algorithm.advantage.apply),
        loss=_short_names(*(term.loss for term in terms)),
        reduce=_short_names(*(term.reduce for term in terms)),
        needs=tuple(need.name for need in needs_of(algorithm) if need.name != "a policy"),
        requires=tuple(dict.fromkeys([*models, *(FIELDS[field].requires for field in read)])),
    )


def _without_abbreviation(title: str, name: str) -> str:
    """`title` without its beginning, if that is `name` or the beginning of it.

    >>> _without_abbreviation("Dr. GRPO, GRPO done right", "dr_grpo")
    'GRPO done right'
    >>> _without_abbreviation("Kimi k1.5 policy optimization, online mirror descent", "kimi")
    'Kimi k1.5 policy optimization, online mirror descent'
    """
    abbreviation, _, rest = title.partition(", ")
    letters = re.sub(r"\W", "", abbreviation).lower()
    return rest if rest and name.replace("_", "").startswith(letters) else title


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
    """The sources in the docstring of `module`: the text after ``Source:`` or ``Sources:``, in one line."""
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
