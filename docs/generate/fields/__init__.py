"""Every field of the configurations of TRL and verl, and what stands for it in purerl.

LIBRARY.txt    the names of all fields, "Class.field" or dotted keys. `tests/oracle/test_fields.py` compares them with
               the library
LIBRARY.toml   rules, in order. A rule is for the fields that match one of its patterns and neither a row of
               `purerl.config.aliases` nor an earlier rule. It has

               names      patterns of `fnmatch`
               settings   the settings of purerl that replace these fields
               because    why purerl needs no such setting
               note       what differs or is missing

               A rule without `settings` and `because` says that purerl does not have this yet.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from docs.generate.markdown import table
from purerl.config.aliases import Library, Row, read_library

__all__ = ["Rule", "answers", "field_names", "rules", "tables"]

_FOLDER = Path(__file__).parent
_INHERITED = {"GRPOConfig": ("GRPO", "Rewards", "Environments and tools"), "DPOConfig": ("DPO", "GRPO")}
_INHERITED |= {"SFTConfig": ("SFT", "GRPO"), "TrainingArguments": ("GRPO",)}
"""Sections of the rows in purerl/config/aliases/trl.toml, by class; the first one with the name counts."""


class Rule(NamedTuple):
    """The equivalent of fields of another library. Without `settings` and `because`: nothing yet."""

    names: tuple[str, ...]
    settings: tuple[str, ...] = ()
    because: str = ""
    note: str = ""

    def __str__(self) -> str:
        settings = ", ".join(f"`{setting}`" for setting in self.settings)
        answer = settings or (f"not needed: {self.because}" if self.because else "not yet")
        return ". ".join(filter(None, [answer, self.note]))


def field_names(library: str) -> list[str]:
    """The names of all fields of `library`, "trl" or "verl"."""
    return (_FOLDER / f"{library}.txt").read_text(encoding="utf-8").split()


@cache
def rules(library: str) -> tuple[Rule, ...]:
    """The rules for `library`, in order."""
    read = tomllib.loads((_FOLDER / f"{library}.toml").read_text(encoding="utf-8"))
    return tuple(
        Rule(**{key: tuple(value) if isinstance(value, list) else value for key, value in rule.items()})
        for rule in read["rule"]
    )


def answers(library: str) -> dict[str, Rule]:
    """The rule of each field of `library`. Raises: KeyError for a field without a row and without a rule."""
    return {name: _of_aliases(read_library(library), name) or _of_rules(library, name) for name in field_names(library)}


def _of_rules(library: str, name: str) -> Rule:
    for rule in rules(library):
        if any(fnmatchcase(name, pattern) for pattern in rule.names):
            return rule
    raise KeyError(name)


def _of_aliases(library: Library, name: str) -> Rule | None:
    """The settings that the rows of `library` have for `name`, without their values; None if there is no row."""
    first, _, field = name.partition(".")
    if first in _INHERITED:
        found = [_rows_for(library, field, section) for section in _INHERITED[first]]
    else:
        found = [_rows_for(library, name, section) for section in dict.fromkeys(row.section for row in library.rows)]
    rows = next(filter(None, found), [])
    settings = tuple(dict.fromkeys(text.partition("=")[0] for row in rows for text in row.settings))
    return Rule((name,), settings) if settings else None


def _rows_for(library: Library, name: str, section: str) -> list[Row]:
    rows = [row for row in library.rows if row.section == section and row.kind == "setting"]
    return [row for row in rows if _is_about(library, row, name)]


def _is_about(library: Library, row: Row, name: str) -> bool:
    names = (text.partition("=")[0].partition(".") for text in row.names)
    return any(library.prefixes.get(first, first) + dot + rest == name for first, dot, rest in names)


# --- tables --------------------------------------------------------------------------------------------------------


def tables(library: str) -> dict[str, str]:
    """The table of the fields of each class of `library`, or of each part of its configuration, by name.

    Neighbors with the same answer share a line.
    """
    found = answers(library)
    parts = {part: [*names] for part, names in groupby(found, key=lambda name: name.partition(".")[0])}
    return {part: table([library_name(library), "purerl"], _lines(found, names)) for part, names in parts.items()}


def library_name(library: str) -> str:
    """The spelling of `library` in text."""
    return read_library(library).name


def _lines(found: dict[str, Rule], names: list[str]) -> Iterator[list[str]]:
    for answer, group in groupby(names, key=lambda name: str(found[name])):
        yield [", ".join(f"`{_short(name)}`" for name in group), answer]


def _short(name: str) -> str:
    """`name` without the class; of a dotted key the whole of it."""
    first, _, field = name.partition(".")
    return field if first in _INHERITED else name
