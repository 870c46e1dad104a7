"""Tables that commands print: as wide as the terminal, without colors where there is none.

A table that is too wide is folded at words, in its widest column; where no room is left for that, each row is a
paragraph. Where there is no terminal nothing is folded, so that whatever reads it finds each row in a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

if TYPE_CHECKING:
    from purerl.config.catalog import Entry
    from purerl.config.explain import Setting
    from purerl.data.inspect import Report
    from purerl.doctor import Finding

__all__ = ["show", "show_algorithms", "show_findings", "show_recipes", "show_report", "show_settings"]

_SHOWN_ROWS = 8
_NARROWEST = 20  # characters of a column in which words are folded
_STATES = {"good": "green", "missing": "yellow", "bad": "red bold"}


def show(
    *head: str,
    rows: Iterable[Iterable[str | Text]],
    whole: bool = False,
    paragraph: Callable[[Sequence[str], Sequence[Text]], RenderableType] | None = None,
) -> None:
    """Print a table; with `whole` nothing in it is broken, be it wider than the terminal.

    `paragraph` makes what stands for a row, of the head and its cells, where the terminal is too narrow for a table.
    """
    lists = [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    columns = [(Text(name), *cells) for name, *cells in zip(head, *lists, strict=True)]
    widths = [max(len(line) for cell in cells for line in str(cell).split("\n")) for cells in columns]
    broad = max(range(len(head)), key=lambda k: widths[k])
    table = Table(box=SIMPLE_HEAD)
    for k, name in enumerate(head):
        table.add_column(name, no_wrap=k != broad)
    for cells in lists:
        table.add_row(*cells)
    console = Console(highlight=False)
    most = Measurement.get(console, console.options.update(max_width=10_000), table).maximum
    if whole or not console.is_terminal:
        console.width = max(console.width, most)
    word = max(len(word) for cell in columns[broad] for word in str(cell).split())
    if most - widths[broad] + max(word, _NARROWEST) <= console.width or most <= console.width:
        console.print(table)
        return
    for cells in lists:
        console.print((paragraph or _labeled)(head, cells), "")


def _labeled(head: Sequence[str], cells: Sequence[Text]) -> RenderableType:
    """A row: its first cell, and below it the others that say something, each beside the head of its column."""
    grid = Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 2, 0, 0))
    for name, cell in zip(head[1:], cells[1:], strict=True):
        if cell:
            grid.add_row(name, cell)
    return Group(cells[0], Padding(grid, (0, 0, 0, 2)))


def _setting(head: Sequence[str], cells: Sequence[Text]) -> RenderableType:
    """A setting as one makes it, with where it came from; below it what it means."""
    key, value, unit, meaning, source = cells
    made = Text(" ").join(part for part in (key, Text("="), value, unit) if part)
    return Group(Text.assemble(made, "  (", source, ")"), Padding(meaning, (0, 0, 0, 4)))


def show_algorithms(entries: Iterable[Entry]) -> None:
    """Algorithms: their papers, what they are made of, what they need."""
    lists = ((e.name, e.title, *map("\n".join, (e.papers, e.advantage, e.loss, e.reduce, e.needs))) for e in entries)
    show("name", "title", "papers", "advantage", "loss", "reduction", "needs", rows=lists)


def show_recipes(recipes: Iterable[tuple[str, str, Iterable[str]]]) -> None:
    """Recipes: name, what it does, what it needs to be there."""
    show(
        "recipe",
        "what it does",
        "needs",
        rows=((name, does, "\n".join(needs) or "nothing") for name, does, needs in recipes),
    )


def show_settings(settings: Iterable[Setting]) -> None:
    """Settings; what is not as by default stands out."""
    styles = {"default": "dim", "--set": "bold"}
    rows = (
        (Text(s.key, styles.get(s.source, "")), s.value, s.unit, s.meaning, Text(s.source, styles.get(s.source, "")))
        for s in settings
    )
    show("setting", "value", "unit", "meaning", "from", rows=rows, paragraph=_setting)


def show_findings(findings: Iterable[Finding]) -> bool:
    """What was looked at, as soon as it is known; whether nothing of it is bad."""
    console, section, good = Console(highlight=False), "", True
    for one in findings:
        if one.section != section:
            section = one.section
            console.print(Text(f"\n{section}", style="bold"))
        do = f"  ->  {one.do}" if one.do else ""
        text = Text.assemble((f"  {one.state:<8}", _STATES[one.state]), f"{one.name:<15} {one.text}{do}")
        console.print(text, soft_wrap=True)
        good = good and one.state != "bad"
    return good


def show_report(report: Report) -> None:
    """Print a report on a data file: its formats, columns, prompt lengths, problems, and a rendered row."""
    style = {"verl": "verl's columns", "TRL": "TRL's columns", "plain": "plain columns"}[report.style]
    lines = [f"{report.path}: {report.rows:,} rows"]
    lines += [f"  {example_format}, {style}" for example_format in report.formats] or ["  no supported columns"]
    lines += [f"  ground truth: {report.ground_truth_column}"] if report.ground_truth_column else []
    lines += [f"  {line}" for error in report.errors for line in error.splitlines()]
    typer.echo("\n".join(lines))
    show("column", "type", "nulls", rows=((c.name, c.type, f"{c.nulls:,}") for c in report.columns))
    if report.prompt_lengths:
        show("prompt length", "tokens", rows=((name, f"{n:,}") for name, n in report.prompt_lengths.items()))
    if report.problems:
        rows = ((p.message, f"{len(p.rows):,}", _shortened(p.rows)) for p in report.problems)
        show("problem", "rows", "row indices", rows=rows)
    for text in report.sample:
        typer.echo(f"\n--- rendered row ---\n{text}")


def _shortened(rows: Sequence[int]) -> str:
    return ", ".join(map(str, rows[:_SHOWN_ROWS])) + (", ..." if len(rows) > _SHOWN_ROWS else "")
