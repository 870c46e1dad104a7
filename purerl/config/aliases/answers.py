"""Answers: the equivalent in purerl of every setting of TRL and of verl.

LIBRARY_fields.json   all settings of the library, "Class.field" or dotted keys, with their defaults.
                      `tests/oracle/test_fields.py` compares them with the library
verl_other_fields.json  the same for verl's other trainers, by trainer
LIBRARY_answers.toml  answers, in order. An answer is for the settings that match one of its patterns and no earlier
                      answer. It has

                      names     patterns of `fnmatch`
                      to        the settings of purerl that replace these settings. `values` maps a value of the
                                library, as text, to that of purerl, or to a table of several settings. Without
                                `values` and `rule` the value is the same
                      rule      a function of `purerl.porting`, by its name, that computes the settings in `to` from the
                                values of several settings
                      unneeded  why purerl needs no such setting
                      missing   why purerl has nothing like it
                      same      values with which nothing has to be set: purerl then does the same
                      note      the difference, if the settings are not one to one

                      Each answer has one of `to`, `unneeded` and `missing`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

__all__ = ["Answer", "answer", "answers", "defaults", "known", "other_defaults"]


class Answer(NamedTuple):
    """The equivalent of some settings of another library, see the module."""

    names: tuple[str, ...]
    to: tuple[str, ...] = ()
    values: Mapping[str, Any] = MappingProxyType({})
    rule: str = ""
    unneeded: str = ""
    missing: str = ""
    same: tuple[Any, ...] = ()
    note: str = ""

    def __str__(self) -> str:
        settings = ", ".join(f"`{setting}`" for setting in self.to)
        reason = f"not needed: {self.unneeded}" if self.unneeded else f"not there: {self.missing}"
        return ". ".join(filter(None, [settings or reason, self.note]))


@cache
def answers(library: str) -> tuple[Answer, ...]:
    """The answers for `library`, "trl" or "verl", in order."""
    read = tomllib.loads(_path(f"{library}_answers.toml").read_text(encoding="utf-8"))
    return tuple(
        Answer(**{key: tuple(value) if isinstance(value, list) else value for key, value in row.items()})
        for row in read["answer"]
    )


@cache
def defaults(library: str) -> Mapping[str, Any]:
    """The settings of `library`, each with its default; None if it has none."""
    return json.loads(_path(f"{library}_fields.json").read_text(encoding="utf-8"))


@cache
def other_defaults(library: str) -> Mapping[str, Mapping[str, Any]]:
    """The settings of other trainers of `library` with their defaults, by trainer."""
    path = _path(f"{library}_other_fields.json")
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


@cache
def known(library: str) -> Mapping[str, Any]:
    """All settings of `library`, of whatever trainer, with their defaults."""
    others = {name: value for each in other_defaults(library).values() for name, value in each.items()}
    return {**others, **defaults(library)}


@cache
def answer(library: str, name: str) -> Answer | None:
    """The answer for the setting `name` of `library`; None if there is none."""
    matching = (each for each in answers(library) if any(fnmatchcase(name, pattern) for pattern in each.names))
    return next(matching, None)


def _path(name: str) -> Path:
    return Path(__file__).parent / name
