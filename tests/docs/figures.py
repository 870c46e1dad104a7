"""The figures in the tables of a tutorial."""

from __future__ import annotations

from pathlib import Path

_TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"


def figures(page: str, column: str) -> list[float]:
    """The numbers in the first `column` of this name among the tables of `page`, one for each seed.

    Raises: LookupError if no table has the column.
    """
    table: list[list[str]] = []
    for line in (*(_TUTORIALS / page).read_text(encoding="utf-8").splitlines(), ""):
        if line.startswith("|"):
            table.append([cell.strip() for cell in line.strip("|").split("|")])
        elif table and column in table[0]:
            place = table[0].index(column)
            return [float(row[place]) for row in table[2:]]
        else:
            table = []
    raise LookupError(f"{page} has no column {column!r}")
