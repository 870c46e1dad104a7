"""Tables that commands print, for the width of the terminal.

If a table is too wide, the text of its widest column is wrapped. If it is much too wide, each row becomes a paragraph.
If the output is not a terminal, there are no colors, and nothing is wrapped, so that each row is a line. Only
`purerl algo diff` fits the width there too, because its rows are long and made to be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from purerl.system.terminal import escape
from purerl_cli.tokens import show_endings, show_tokens

if TYPE_CHECKING:
    from purerl.config.listing import Setting
    from purerl.data.inspect import Report
    from purerl.data.shown_tokens import ShownToken
    from purerl.doctor import Finding
    from purerl.explain.catalog import Entry, ModifierEntry
    from purerl.explain.comparison import Difference, Effect

__all__ = [
    "show",
    "show_algorithms",
    "show_differences",
    "show_findings",
    "show_modifiers",
    "show_recipes",
    "show_report",
    "show_settings",
]

_MAX_ROW_INDICES = 8
_MAX_COLUMNS = 200  # of a data file
_MIN_WRAPPED_WIDTH = 20
_STATE_STYLES = {"good": "green", "missing": "yellow", "bad": "red bold"}
_SOURCE_STYLES = {"default": "dim", "--set": "bold"}
_STYLE_NAMES = {"verl": "verl's columns", "TRL": "TRL's columns", "plain": "plain columns"}

Paragraph = Callable[[Sequence[str], Sequence[Text]], RenderableType]


def show(
    *head: str,
    rows: Iterable[Iterable[str | Text]],
    wrap: bool = True,
    in_pipes: bool = False,
    paragraph: Paragraph | None = None,
) -> None:
    """Print a table. Without `wrap`, its lines may be longer than the width of the terminal.

    With `in_pipes`, it fits the width of the output also if this is not a terminal: COLUMNS, or 80.

    `paragraph` formats a row, given `head` and its cells, if the terminal is too narrow for a table.
    """
    cells_of_rows = [[Text(escape(cell)) if isinstance(cell, str) else cell for cell in row] for row in rows]
    columns = [(Text(name), *cells) for name, *cells in zip(head, *cells_of_rows, strict=True)]
    widths = [max(len(line) for cell in cells for line in str(cell).split("\n")) for cells in columns]
    widest = max(range(len(head)), key=lambda k: widths[k])
    table = Table(box=SIMPLE_HEAD)
    for k, name in enumerate(head):
        table.add_column(Text(name), no_wrap=k != widest)
    for cells in cells_of_rows:
        table.add_row(*cells)
    console = Console(highlight=False)
    full_width = Measurement.get(console, console.options.update(max_width=10_000), table).maximum
    if not wrap or not (console.is_terminal or in_pipes):
        console.width = max(console.width, full_width)
    longest_word = max(len(word) for cell in columns[widest] for word in str(cell).split())
    min_width = full_width - widths[widest] + max(longest_word, _MIN_WRAPPED_WIDTH)
    if min(min_width, full_width) <= console.width:
        console.print(table)
        return
    for cells in cells_of_rows:
        console.print((paragraph or _labeled_paragraph)(head, cells), "")


def _labeled_paragraph(head: Sequence[str], cells: Sequence[Text]) -> RenderableType:
    """The first cell, and below it the other cells that are not empty, each with the name of its column."""
    grid = Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 2, 0, 0))
    for name, cell in zip(head[1:], cells[1:], strict=True):
        if cell:
            grid.add_row(Text(name), cell)
    return Group(cells[0], Padding(grid, (0, 0, 0, 2)))


def _setting_paragraph(head: Sequence[str], cells: Sequence[Text]) -> RenderableType:
    """A setting as `key = value unit (source)`, and its meaning below."""
    key, value, unit, meaning, source = cells
    assignment = Text(" ").join(part for part in (key, Text("="), value, unit) if part)
    return Group(Text.assemble(assignment, "  (", source, ")"), Padding(meaning, (0, 0, 0, 4)))


def show_algorithms(families: Mapping[str, str], entries: Sequence[Entry]) -> None:
    """Print algorithms, family by family: the name, what it is, and what it needs that not every run has.

    If the terminal is too narrow for columns, what it is and what it needs are below the name.
    """
    rows = {family: [_algorithm_cells(entry) for entry in entries if entry.family == family] for family in families}
    headings = {name: Text.assemble((name, "bold"), f": {families[name]}") for name, members in rows.items() if members}
    console = Console(highlight=False)
    widths = _algorithm_widths([_ALGORITHM_HEAD, *chain.from_iterable(rows.values())], console)
    if not console.is_terminal:
        console.width = max(console.width, sum(widths) + 6, *map(len, headings.values()))
    if len(widths) > 1:
        console.print(_algorithm_grid([_ALGORITHM_HEAD], widths), style="bold")
    for name, heading in headings.items():
        console.print(heading, _algorithm_grid(rows[name], widths), sep="\n")
    console.print("`purerl algo show NAME` shows equations, papers, components and settings.")


_ALGORITHM_HEAD = ("name", "what it is", "needs")


def _algorithm_widths(rows: Sequence[Sequence[str]], console: Console) -> tuple[int, ...]:
    """The widths of the three columns on `console`, or one width if it is too narrow for them."""
    name, summary, needs = (max(map(len, column)) for column in zip(*rows, strict=True))
    margins = 2 + 2 * 2
    if not console.is_terminal or name + summary + needs + margins <= console.width:
        return name, summary, needs
    needs = max(len(need) for row in rows for need in row[2].split(", ")) + 1
    summary = min(summary, console.width - name - needs - margins)
    return (name, summary, needs) if summary >= _MIN_WRAPPED_WIDTH else (console.width - 2,)


def _algorithm_cells(entry: Entry) -> tuple[str, str, str]:
    return entry.name, entry.summary, ", ".join(entry.requires)


def _algorithm_grid(rows: Iterable[Sequence[str]], widths: Sequence[int]) -> RenderableType:
    """Rows in columns of `widths`; with one width, the cells of a row are below each other."""
    grid = Table.grid(*(Column(width=width, overflow="fold") for width in widths), padding=(0, 2, 0, 0))
    for name, *others in rows:
        if len(widths) > 1:
            grid.add_row(*map(Text, (name, *others)))
        else:
            below = (Padding(Text(cell), (0, 0, 0, 2)) for cell in others if cell)
            grid.add_row(Group(Text(name), *below))
    return Padding(grid, (0, 0, 0, 2))


def show_modifiers(entries: Iterable[ModifierEntry]) -> None:
    """Print modifiers: what they do, their settings with defaults, and papers."""
    from purerl.config.listing import toml

    defaults = (((e.name, e.title), [f"{k} = {toml(v) or 'none'}" for k, v in e.settings], e.papers) for e in entries)
    rows = ((*texts, "\n".join(settings), "\n".join(papers)) for texts, settings, papers in defaults)
    show("name", "what it does", "settings", "papers", rows=rows)


def show_differences(first: str, second: str, differences: Sequence[Difference], total: Effect) -> None:
    """Print the parts in which two algorithms differ, and the effect of each alone and of all together."""
    from purerl.explain.comparison import effect_texts

    if not differences:
        typer.echo(f"{first} and {second} are the same algorithm.")
        return
    show("part", first, second, rows=((d.part, d.first, d.second) for d in differences), in_pipes=True)
    effects = [*((f"only {difference.part}", difference.effect) for difference in differences), ("all of them", total)]
    head = ("change", "advantages", "loss", "gradient norm", "cosine")
    show(*head, rows=((name, *effect_texts(effect)) for name, effect in effects), in_pipes=True)


def show_recipes(recipes: Iterable[tuple[str, str, Iterable[str]]]) -> None:
    """Print recipes: name, description, and the settings that have to be given."""
    rows = ((name, description, "\n".join(needs) or "nothing") for name, description, needs in recipes)
    show("recipe", "description", "needs", rows=rows)


def show_settings(settings: Iterable[Setting]) -> None:
    """Print settings, with emphasis on those that do not have their default value."""
    rows = (
        (
            Text(setting.key, _SOURCE_STYLES.get(setting.source, "")),
            setting.value,
            setting.unit,
            setting.meaning,
            Text(setting.source, _SOURCE_STYLES.get(setting.source, "")),
        )
        for setting in settings
    )
    show("setting", "value", "unit", "meaning", "from", rows=rows, paragraph=_setting_paragraph)


def show_findings(findings: Iterable[Finding]) -> bool:
    """Print each finding as soon as it is known. Return whether none of them is bad."""
    console, section, is_good = Console(highlight=False), "", True
    for finding in findings:
        if finding.section != section:
            section = finding.section
            console.print(Text(f"\n{escape(section)}", style="bold"))
        do = f"  ->  {finding.do}" if finding.do else ""
        state = (f"  {finding.state:<8}", _STATE_STYLES[finding.state])
        console.print(Text.assemble(state, escape(f"{finding.name:<15} {finding.text}{do}")), soft_wrap=True)
        is_good = is_good and finding.state != "bad"
    return is_good


def show_report(report: Report) -> None:
    """Print a report on a data file: its formats, columns, prompt lengths, problems, and a rendered row."""
    lines = [f"{report.path}: {report.rows:,} rows"]
    formats = [f"  {example_format}, {_STYLE_NAMES[report.style]}" for example_format in report.formats]
    lines += formats or ["  no supported columns"]
    lines += [f"  ground truth: {report.ground_truth_column}"] if report.ground_truth_column else []
    lines += [f"  {line}" for error in report.errors for line in error.splitlines()]
    lines += [f"  note: {note}" for note in report.notes]
    typer.echo("\n".join(lines))
    used = {name for each in report.formats for name in (*each.all_columns, report.ground_truth_column)}
    columns, num_more = report.columns, len(report.columns) - _MAX_COLUMNS
    if num_more > 0:
        columns = sorted(columns, key=lambda column: column.name not in used)[:_MAX_COLUMNS]
    show("column", "type", "nulls", rows=((c.name, c.type, f"{c.nulls:,}") for c in columns))
    if num_more > 0:
        typer.echo(f"  and {num_more:,} more columns\n")
    if report.prompt_lengths:
        show("prompt length", "tokens", rows=((name, f"{n:,}") for name, n in report.prompt_lengths.items()))
    if report.problems:
        rows = ((p.message, f"{len(p.rows):,}", _format_indices(p.rows)) for p in report.problems)
        show("problem", "rows", "row indices", rows=rows)
    for text, row in zip(report.sample, report.shown, strict=True):
        typer.echo(f"\n--- rendered row ---\n{text}")
        typer.echo(f"\n--- its {_count_tokens(row.tokens)} ---")
        show_tokens(row)
    if report.endings:
        typer.echo("\n--- a completion ends with ---")
        show_endings(report.endings)


def _count_tokens(tokens: Sequence[ShownToken]) -> str:
    learned = sum(token.is_learned for token in tokens)
    return f"{len(tokens):,} tokens, " + (f"of which {learned:,} are learned" if learned else "after which is sampled")


def _format_indices(rows: Sequence[int]) -> str:
    return ", ".join(map(str, rows[:_MAX_ROW_INDICES])) + (", ..." if len(rows) > _MAX_ROW_INDICES else "")
