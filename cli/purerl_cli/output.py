"""What commands print: errors without a traceback, and configurations with their plan."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from purerl.errors import InputError, PurerlError
from purerl.plugins import kind_of

if TYPE_CHECKING:
    from purerl.config.catalogue import Entry
    from purerl.config.schema import RunConfig
    from purerl.data.inspect import Report
    from purerl.loop.train import Summary

__all__ = ["described", "errors_reported", "finished", "inspected", "listed", "table"]

_SHOWN_ROWS = 8


@contextmanager
def errors_reported(
    *, debug: bool, interrupted: str = "the same command goes on from the last checkpoint"
) -> Iterator[None]:
    """Leave with 2 where the input is wrong, with 1 where a run failed, with 130 on Ctrl-C.

    Any other error is a bug and keeps its traceback; with `debug` all do.
    """
    try:
        yield
    except PurerlError as error:
        if debug:
            traceback.print_exc()
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, InputError) else 1) from error
    except KeyboardInterrupt as stop:
        typer.echo(f"interrupted; {interrupted}", err=True)
        raise typer.Exit(130) from stop


def described(config: RunConfig) -> str:
    """`config`, checked, as TOML that `purerl train` takes; its plan stands above it in comments."""
    from purerl.config.check import check
    from purerl.config.plan import plan
    from purerl.config.structure import dumps

    check(config)
    comments = [f"# {line}" for line in plan(config).splitlines()]
    return "\n".join([*comments, "", dumps(config)])


def listed(entries: list[Entry]) -> str:
    """Algorithms as a table, as wide as the terminal."""
    head = ("name", "title", "papers", "advantage", "loss", "reduction", "needs")
    lists = ("papers", "advantage", "loss", "reduce", "needs")
    rows = [(one.name, one.title, *("\n".join(getattr(one, name)) for name in lists)) for one in entries]
    return table(head, rows)


def inspected(report: Report) -> str:
    """A report on a file: its uses, columns, lengths and problems, and a row as the model sees it."""
    columns = {"verl": "verl's columns", "TRL": "TRL's columns", "plain": "plain columns"}[report.style]
    uses = [f"{layout}, {columns}" for layout in report.layouts] or ["nothing: no columns of prompts or of answers"]
    facts = [f"{report.path}: {report.rows:,} rows", *(f"  {use}" for use in uses)]
    facts += [f"  right answers: {report.truth}"] if report.truth else []
    parts = ["\n".join(facts) + "\n"]
    parts += [table(("column", "type", "nothing in"), [(c.name, c.type, f"{c.nulls:,}") for c in report.columns])]
    if report.lengths:
        parts += [table(("prompts", "tokens at most"), [(name, f"{n:,}") for name, n in report.lengths.items()])]
    if report.problems:
        rows = [(one.what, f"{len(one.rows):,}", _shortened(one.rows)) for one in report.problems]
        parts += [table(("problem", "rows", "which, from 0"), rows)]
    parts += [f"\n--- a row, as the model sees it ---\n{text}\n" for text in report.sample]
    return "".join(parts)


def _shortened(rows: Sequence[int]) -> str:
    return ", ".join(map(str, rows[:_SHOWN_ROWS])) + (", ..." if len(rows) > _SHOWN_ROWS else "")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, as wide as the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*head, box=SIMPLE_HEAD)
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console()
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def finished(config: RunConfig, recipe: str, summary: Summary) -> str:
    """What a run came to: its accuracy before and after, where it all is, and what to type next."""
    lines = [("model", f"{summary.model}, in Hugging Face's format"), ("checkpoint", str(summary.checkpoint))]
    if config.evaluate and "eval/accuracy" in summary.after:
        before, after = summary.before["eval/accuracy"], summary.after["eval/accuracy"]
        label = "accuracy" if set(config.evaluate.data.values()) & set(config.data.files) else "held-out accuracy"
        lines = [(label, f"{before:.3f} before, {after:.3f} after {summary.steps} steps"), *lines]
    again = f"purerl train {recipe} --set seed={config.seed + 1} --directory {summary.directory}-{config.seed + 1}"
    lines += [("metrics", str(summary.directory / "metrics.jsonl")), ("next", f"{again}    another seed")]
    if config.rollout is not None:
        other = "dr_grpo" if kind_of(config.algorithm) != "dr_grpo" else "grpo"
        settings = f"--set algorithm.kind={other} --directory {summary.directory}-{other}"
        lines += [("", f"purerl train {recipe} {settings}    another algorithm")]
    width = max(len(label) for label, _ in lines)
    return "\n".join(f"{label:<{width}}  {text}" for label, text in lines)
