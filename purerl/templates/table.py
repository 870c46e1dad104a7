"""A table of templates and kinds of rows, and the messages that its cells name by numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from purerl.templates.trials import KINDS, Cell

__all__ = ["TemplateTable", "make_table"]

Results = Mapping[str, Mapping[str, Cell]]

_PLACES = re.compile(r"^row 0 of 'trial': |^\d+ rows? with |:? (in )?rows? 0 of 'trial'|^'trial': ")


class TemplateTable(NamedTuple):
    """The names of columns, the rows, and the messages by the number that stands for them in cells."""

    head: tuple[str, ...]
    rows: list[list[str]]
    messages: dict[str, str]


def make_table(results: Results) -> TemplateTable:
    """The table of `results`, by template and kind.

    yes           the rows of this kind work
    thinking off  they work with chat_template_kwargs that turn thoughts off, such as enable_thinking = false; or on
    note 1        they work, and a run prints note 1
    refused 1     a run is refused with message 1
    wrong 1       a fault of purerl

    Of the kind "tool format", a cell is the name of the format.
    """
    numbers: dict[str, str] = {}
    rows = [[name, *(_cell(cells[kind], numbers) for kind in KINDS)] for name, cells in results.items()]
    return TemplateTable(("template", *KINDS), rows, {number: message for message, number in numbers.items()})


def _cell(cell: Cell, numbers: dict[str, str]) -> str:
    settings = ", ".join(f"thinking {'on' if value else 'off'}" for value in cell.kwargs.values())
    if cell.result == "works":
        return ", ".join(filter(None, [cell.message, settings])) or "yes"
    message = _short(cell.message)
    number = numbers.setdefault(message, str(len(numbers) + 1))
    return ", ".join(filter(None, [f"{cell.result} {number}", settings]))


def _short(message: str) -> str:
    """The first line of an error, or a note, without the name of the row."""
    return "; ".join(_PLACES.sub("", part) for part in message.partition("\n")[0].split("; "))
