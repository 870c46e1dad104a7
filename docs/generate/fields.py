"""Tables of every setting of TRL and verl, and the equivalent in purerl: purerl/config/aliases/LIBRARY_answers.toml."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from docs.generate.markdown import table
from purerl.config.aliases import Library, Row, read_library
from purerl.config.aliases.answers import Answer, answer, defaults

__all__ = ["field_answers", "field_names", "shown", "tables"]

_CLASSES = ("GRPOConfig", "DPOConfig", "SFTConfig", "RewardConfig", "KTOConfig", "TrainingArguments", "LoraConfig")
"""The classes of TRL, transformers and peft that the page shows. The first ones inherit from TrainingArguments."""


def field_names(library: str) -> list[str]:
    """The settings of `library`, "trl" or "verl", that its page shows: without those that a class inherits."""
    names = [name for name in defaults(library) if library != "trl" or name.partition(".")[0] in _CLASSES]
    return [name for name in names if not _is_inherited(library, name)]


def _is_inherited(library: str, name: str) -> bool:
    cls, _, field = name.partition(".")
    return cls.endswith("Config") and f"TrainingArguments.{field}" in defaults(library)


def field_answers(library: str) -> dict[str, Answer]:
    """The answer for each field of `library` on its page. Raises: KeyError for a field without an answer."""
    return {name: _answer(library, name) for name in field_names(library)}


def _answer(library: str, name: str) -> Answer:
    found = _of_rows(read_library(library), name) or answer(library, name)
    if found is None:
        raise KeyError(name)
    return found


def _of_rows(library: Library, name: str) -> Answer | None:
    """The settings that the rows of `library` have for a dotted key, without their values; None if there is no row."""
    rows = [row for row in library.rows if row.kind == "setting" and _is_about(library, row, name)]
    settings = tuple(dict.fromkeys(text.partition("=")[0] for row in rows for text in row.settings))
    return Answer((name,), settings) if settings else None


def _is_about(library: Library, row: Row, name: str) -> bool:
    names = (text.partition("=")[0].partition(".") for text in row.names)
    return any(library.prefixes.get(first, first) + dot + rest == name for first, dot, rest in names)


# --- tables --------------------------------------------------------------------------------------------------------


def tables(library: str) -> dict[str, str]:
    """The table of the fields of each class of `library`, or of each part of its configuration, by name.

    Neighbors with the same answer share a line.
    """
    found = field_answers(library)
    parts = {part: [*names] for part, names in groupby(found, key=lambda name: name.partition(".")[0])}
    head = [read_library(library).name, "purerl"]
    return {part: table(head, _lines(library, found, names)) for part, names in parts.items()}


def _lines(library: str, found: dict[str, Answer], names: list[str]) -> Iterator[list[str]]:
    for text, group in groupby(names, key=lambda name: str(found[name])):
        yield [", ".join(f"`{shown(library, name)}`" for name in group), text]


def shown(library: str, name: str) -> str:
    """`name` as the page shows it: a field of a class without the class."""
    return name.partition(".")[2] if library == "trl" else name
