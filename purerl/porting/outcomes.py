"""Results of a translation: settings of purerl, and what has no setting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

__all__ = ["FILL_IN", "Missing", "Rule", "Setting", "Translation", "Unknown"]

FILL_IN = "FILL IN"
"""In place of a value that is not known: a file with it is refused by every setting that is not text."""


class Setting(NamedTuple):
    """A setting of purerl: its dotted key, as in ``--set``, its value, and a comment, which may be empty."""

    key: str
    value: Any
    comment: str = ""


class Missing(NamedTuple):
    """A setting of the other library whose value purerl has nothing for, and why."""

    name: str
    why: str


class Unknown(NamedTuple):
    """A value that is known only when code runs: its source text, and the place as ``file:line``."""

    text: str
    place: str

    def __str__(self) -> str:
        return f"{self.text} ({self.place})"


Rule = Callable[[Mapping[str, Any]], Iterable[Setting | Missing]]
"""A pure function from all settings of the other library, defaults included, to the settings of purerl."""


class Translation(NamedTuple):
    """A configuration of another library as settings of purerl.

    library     the name of the library, as in text
    settings    settings of purerl, in the order in which they are written
    translated  settings of the library that were given, each with the settings of purerl that replace it
    unneeded    settings that were given and need no counterpart, and why
    missing     settings that were given and have none, and why
    unknown     settings whose value is known only when code runs
    notes       sentences about what was not read
    """

    library: str
    settings: tuple[Setting, ...]
    translated: Mapping[str, tuple[str, ...]]
    unneeded: Mapping[str, str]
    missing: Mapping[str, str]
    unknown: Mapping[str, Unknown]
    notes: tuple[str, ...] = ()
