"""Names of settings and metrics in TRL, in verl and in earlier versions of purerl, and what replaces them.

renamed.toml   names of earlier versions of purerl
trl.toml       TRL's names
verl.toml      verl's names

`answers` reads an answer for every setting of TRL and verl.

`suggestion` makes the remedy of an error message from these tables. The documentation makes its pages "From TRL" and
"From verl" from them. The files are read when they are first needed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

__all__ = ["LIBRARIES", "Dataset", "Library", "Row", "read_library", "read_renamed", "suggestion"]

LIBRARIES = ("trl", "verl")
"""Names for `read_library`."""


class Dataset(NamedTuple):
    """A type of data set: its columns, the formats that they may have, and the type of its examples in purerl.

    `extra_columns` are columns that only reward functions read.
    """

    type: str
    columns: tuple[str, ...]
    extra_columns: tuple[str, ...]
    formats: tuple[str, ...]
    example_type: str


class Row(NamedTuple):
    """One row of a table: names of another library, and the settings of purerl that replace all of them.

    section    heading of the table
    names      "key" or "key=value"
    requires   further settings of the other library that the row assumes
    settings   "key", "key=value", or a function as "module:name"
    note       what differs; may be empty
    exact      settings that compute what the library computes: a preset of the library, and changes to it; may be empty
    kind       what `names` are; if they are metrics, `settings` are metrics too
    """

    section: str
    names: tuple[str, ...]
    requires: tuple[str, ...]
    settings: tuple[str, ...]
    note: str
    exact: tuple[str, ...]
    kind: Literal["setting", "function", "class", "recipe", "metric"]


_OPTIONAL = {"requires": (), "note": "", "exact": (), "kind": "setting"}


class Library(NamedTuple):
    """All tables of one library. `prefixes` maps short forms to what they stand for: "actor" to "x.actor"."""

    name: str
    version: str
    prefixes: Mapping[str, str]
    datasets: tuple[Dataset, ...]
    rows: tuple[Row, ...]


@cache
def read_library(name: str) -> Library:
    """The tables of the library in `LIBRARIES` that is called `name`."""
    table = _read(name)
    return Library(
        name=table["library"],
        version=table["version"],
        prefixes=table.get("prefixes", {}),
        datasets=tuple(_make(Dataset, {"extra_columns": ()} | row) for row in table["dataset"]),
        rows=tuple(_make(Row, _OPTIONAL | row) for row in table["row"]),
    )


@cache
def read_renamed() -> Mapping[str, tuple[str, ...]]:
    """Old names of settings and metrics of purerl, each with its new names; several new names are alternatives."""
    table = _read("renamed")
    return {old: tuple(new) for section in ("settings", "metrics") for old, new in table[section].items()}


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))


def _make(kind: Any, row: Mapping[str, Any]) -> Any:
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in row.items()})


# --- suggestions -------------------------------------------------------------------------------------------------


class _Alias(NamedTuple):
    """A name that is not purerl's. `library` is empty for old names of purerl; `section` distinguishes equal names."""

    library: str
    name: str
    long_name: str
    settings: tuple[str, ...]
    section: str

    @property
    def last_part(self) -> str | None:
        """The last part of a dotted name. None for an old name of purerl without a dot: only the whole name counts."""
        return self.name.rpartition(".")[2] if self.library or "." in self.name else None


def suggestion(key: str) -> str | None:
    """The remedy for the unknown setting or metric `key`; None if `key` is in none of the tables.

    A whole name is preferred, also below ``initial_run.``. Otherwise the last part of `key` must be the last part of
    names that are all replaced by the same settings. Names are compared exactly.

    >>> suggestion("examples")
    "it is called 'batch_size' here (it was 'examples')"
    >>> suggestion("trainer.num_generations")
    "TRL's 'num_generations' is 'rollout.samples_per_prompt' here"
    """
    name = key.removeprefix("initial_run.")
    matches = [alias for alias in _aliases() if name in (alias.name, alias.long_name)]
    if not matches:
        matches = [alias for alias in _aliases() if alias.last_part == name.rpartition(".")[2]]
        if len({alias.settings for alias in matches}) > 1:
            return None
    if not matches or name in matches[0].settings:
        return None
    return _describe([alias for alias in matches if alias.library == matches[0].library])


@cache
def _aliases() -> tuple[_Alias, ...]:
    renamed = (_Alias("", name, name, settings, "") for name, settings in read_renamed().items())
    return (*renamed, *(alias for name in LIBRARIES for alias in _aliases_in(read_library(name))))


def _aliases_in(library: Library) -> Iterator[_Alias]:
    for row in library.rows:
        if row.kind != "setting":
            continue
        for text in row.names:
            name, _, value = text.partition("=")
            first, dot, rest = name.partition(".")
            # The setting that corresponds to the key of "key=value" comes first, without its value.
            settings = (row.settings[0].partition("=")[0],) if value else row.settings
            yield _Alias(library.name, name, library.prefixes.get(first, first) + dot + rest, settings, row.section)


def _describe(aliases: list[_Alias]) -> str:
    """A remedy made from `aliases`, which have one library and one name."""
    first = aliases[0]
    if first.settings == (first.name,):
        return f"it is called {first.name!r} here"
    if not first.library:
        return f"it is called {_join(first.settings, 'or')} here (it was {first.name!r})"
    sections: dict[str, list[str]] = {}
    for alias in aliases:
        sections.setdefault(_join(alias.settings, "and"), []).append(alias.section)
    if len(sections) == 1:
        return f"{first.library}'s {first.name!r} is {next(iter(sections))} here"
    choices = " or ".join(f"{settings} ({', '.join(dict.fromkeys(names))})" for settings, names in sections.items())
    return f"{first.library}'s {first.name!r} is {choices} here"


def _join(names: Iterable[str], conjunction: str) -> str:
    *first, last = map(repr, names)
    return f"{', '.join(first)} {conjunction} {last}" if first else last
