"""Tables that commands print: as wide as the terminal, without colours where there is none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from purerl.config.catalogue import Entry
    from purerl.config.explain import Setting
    from purerl.doctor import Finding

__all__ = ["show_algorithms", "show_findings", "show_recipes", "show_settings"]

_STATES = {"good": "green", "missing": "yellow", "bad": "red bold"}


def _show(*head: str, rows: Iterable[Iterable[str | Text]]) -> None:
    table = Table(box=SIMPLE_HEAD)
    for k, name in enumerate(head):
        table.add_column(name, no_wrap=k == 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    Console(highlight=False).print(table)


def show_algorithms(entries: Iterable[Entry]) -> None:
    """Algorithms: their papers, what they are made of, what they need."""
    lists = ((e.name, e.title, *map("\n".join, (e.papers, e.advantage, e.loss, e.reduce, e.needs))) for e in entries)
    _show("name", "title", "papers", "advantage", "loss", "reduction", "needs", rows=lists)


def show_recipes(recipes: Iterable[tuple[str, str, Iterable[str]]]) -> None:
    """Recipes: name, what it does, what it needs to be there."""
    _show(
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
    _show("setting", "value", "unit", "meaning", "from", rows=rows)


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
