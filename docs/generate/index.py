"""The index of algorithms: tables that compare them, one for each family."""

from __future__ import annotations

from docs.generate.curves import curves, thumbnail
from docs.generate.markdown import linked, table
from purerl.explain.catalog import FAMILIES, Entry
from purerl.plugins import find

__all__ = ["index"]


def index(entries: list[Entry]) -> str:
    """A table for each family of algorithms, and the list of their pages for the sidebar."""
    families = {family: [entry for entry in entries if entry.family == family] for family in FAMILIES}
    tables = [f"## {name}\n\n{FAMILIES[name]}\n\n{_table(members)}" for name, members in families.items() if members]
    pages = [f"{entry.name} <{entry.name}>" for entry in entries]
    toctree = "\n".join(["```{toctree}", ":hidden:", "", *pages, "```"])
    title = "---\nhide-toc: true\n---\n\n# Algorithms"
    return "\n\n".join([title, _INTRODUCTION.format(count=len(entries)), *tables, toctree]) + "\n"


_INTRODUCTION = """\
purerl has {count} algorithms, each in its own file in `purerl/algos/`. An algorithm is a composition of functions that
other algorithms use too. The tables list these functions. [Modifiers](../../how-to/modifiers.md) change parts of any
algorithm.

The curves show the gradient of the loss with respect to the log-probability of a token, as a function of the
importance ratio, for advantages of 1 and -1. An algorithm has no curve if this gradient depends on anything else, or if
it does not change with the ratio."""


def _table(entries: list[Entry]) -> str:
    return table(["algorithm", "gradient", "advantage", "loss", "reduction", "needs"], map(_row, entries))


def _row(entry: Entry) -> list[str]:
    module = find("algorithm", entry.name)
    drawn = curves(module.algorithm(module.Config()), module.Config())
    lists = (entry.advantage, entry.loss, entry.reduce)
    return [
        "<br>".join([f"[{entry.name}]({entry.name}.md)", *map(linked, entry.papers)]),
        thumbnail(drawn) if drawn else "",
        *("<br>".join(f"`{name}`" for name in names) for names in lists),
        "<br>".join(entry.needs),
    ]
