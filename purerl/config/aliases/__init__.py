"""Names of settings and metrics in TRL, in verl and in earlier versions of purerl, and what replaces them.

renamed.toml   names of earlier versions of purerl
trl.toml       TRL's names
verl.toml      verl's names

`answers` reads an answer for every setting of TRL and verl, and `remedies` makes the remedies of error messages.

The documentation makes its pages "From TRL" and "From verl" from these tables. The files are read when they are first
needed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

__all__ = ["LIBRARIES", "Dataset", "Library", "Row", "read_library", "read_renamed"]

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
