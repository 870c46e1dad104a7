"""Tables that commands print: as wide as the terminal, without colours where there is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from purerl.config.catalogue import Entry
    from purerl.config.explain import Setting
    from purerl.data.inspect import Report
    from purerl.doctor import Finding

__all__ = ["show", "show_algorithms", "show_findings", "show_recipes", "show_report", "show_settings"]

_SHOWN_ROWS = 8
_STATES = {"good": "green", "missing": "yellow", "bad": "red bold"}


def show(*head: str, rows: Iterable[Iterable[str | Text]], whole: bool = False) -> None:
    """Print a table; with `whole` nothing in it is broken, be it wider than the terminal."""
    table = Table(box=SIMPLE_HEAD)
    for k, name in enumerate(head):
        table.add_column(name, no_wrap=whole or k == 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    console = Console(highlight=False)
    if whole:
        unbounded = console.options.update(max_width=10_000)
        console.width = max(console.width, Measurement.get(console, unbounded, table).maximum)
    console.print(table)


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
    show("setting", "value", "unit", "meaning", "from", rows=rows)


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
    """A report on a file: its uses, columns, lengths and problems, and a row as the model sees it."""
    columns = {"verl": "verl's columns", "TRL": "TRL's columns", "plain": "plain columns"}[report.style]
    uses = [f"{layout}, {columns}" for layout in report.layouts] or ["nothing that a run can learn from"]
    facts = [f"{report.path}: {report.rows:,} rows", *(f"  {use}" for use in uses)]
    facts += [f"  right answers: {report.truth}"] if report.truth else []
    facts += [f"  {line}" for reason in report.reasons for line in reason.splitlines()]
    typer.echo("\n".join(facts))
    show("column", "type", "nothing in", rows=((c.name, c.type, f"{c.nulls:,}") for c in report.columns))
    if report.lengths:
        show("prompts", "tokens at most", rows=((name, f"{n:,}") for name, n in report.lengths.items()))
    if report.problems:
        rows = ((one.what, f"{len(one.rows):,}", _shortened(one.rows)) for one in report.problems)
        show("problem", "rows", "which, from 0", rows=rows)
    for text in report.sample:
        typer.echo(f"\n--- a row, as the model sees it ---\n{text}")


def _shortened(rows: Sequence[int]) -> str:
    return ", ".join(map(str, rows[:_SHOWN_ROWS])) + (", ..." if len(rows) > _SHOWN_ROWS else "")
