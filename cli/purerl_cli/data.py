"""`purerl data`: inspect data files, and convert published data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from purerl_cli.output import reported
from purerl_cli.tables import show_report

__all__ = ["data"]

data = typer.Typer(help="Inspect and convert data sets.", no_args_is_help=True)


@data.command()
@reported
def inspect(
    file: Annotated[str, typer.Argument(help="Parquet or JSON Lines file, glob pattern, or directory of a data set.")],
    model: Annotated[
        str | None, typer.Option(metavar="DIR", help="Count tokens and render a row with the tokenizer of this model.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System prompt, as data.system_prompt of a run.")] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="Chat template argument, as data.chat_template_kwargs of a run; repeatable."
        ),
    ] = None,
    max_prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="List the rows whose prompt has more tokens.")
    ] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Inspect only the first ROWS rows.")] = None,
) -> None:
    """Show the columns of a data file, what it can be used for, and the problems in its rows.

    Exits with status 2 if no run can use the file.
    """
    from purerl.backends.tokenizer import load_tokenizer
    from purerl.config.schema import Data
    from purerl.config.structure import apply
    from purerl.data.inspect import inspect
    from purerl.protocols import Model

    settings = apply(Data(files=(file,)), [f"chat_template_kwargs.{argument}" for argument in template or ()])
    report = inspect(
        file,
        load_tokenizer(Model(model)) if model else None,
        system_prompt=system,
        chat_template_kwargs=settings.chat_template_kwargs,
        max_prompt_tokens=max_prompt_tokens,
        limit=rows,
    )
    show_report(report)
    raise typer.Exit(0 if report.formats else 2)


@data.command()
@reported
def convert(
    name: Annotated[str, typer.Argument(help="gsm8k or humaneval.")],
    source: Annotated[Path, typer.Argument(help="The published file, or a directory with one file per split.")],
    target: Annotated[Path, typer.Argument(help="The Parquet file to write, or a directory if SOURCE is one.")],
    form: Annotated[
        Literal["messages", "text"], typer.Option(help="Chat messages in verl's columns, or plain text.")
    ] = "messages",
) -> None:
    """Convert a published data set to Parquet files for training and evaluation."""
    from purerl.data.convert import convert

    for path, count in convert(name, str(source), str(target), prompt_format=form).items():
        typer.echo(f"{path}: {count:,} rows")
