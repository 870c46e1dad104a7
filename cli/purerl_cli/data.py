"""`purerl data`: what a file holds, and published data sets as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from purerl_cli.output import reported
from purerl_cli.tables import show_report

__all__ = ["data"]

data = typer.Typer(help="Data sets.", no_args_is_help=True)


@data.command()
@reported
def inspect(
    file: Annotated[str, typer.Argument(help="Parquet, JSON Lines, a pattern of such, or a data set's directory.")],
    model: Annotated[
        str | None, typer.Option(metavar="DIR", help="Count tokens and render a row with this model's tokenizer.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System prompt, as data.system_prompt of a run.")] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Argument of the chat template; repeatable."),
    ] = None,
    max_prompt_tokens: Annotated[int | None, typer.Option(min=1, help="Name the rows with longer prompts.")] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Look only at the first so many rows.")] = None,
) -> None:
    """Show what a file holds, what a run can do with it, and what is wrong with it.

    Leaves with 2 where a run can do nothing with it.
    """
    from purerl.backends.tokenizer import load_tokenizer
    from purerl.config.schema import Data
    from purerl.config.structure import apply
    from purerl.data.inspect import inspect
    from purerl.protocols import Model

    arguments = apply(
        Data(files=(file,)), [f"chat_template_kwargs.{one}" for one in template or ()]
    ).chat_template_kwargs
    report = inspect(
        file,
        load_tokenizer(Model(model)) if model else None,
        system_prompt=system,
        chat_template_kwargs=arguments,
        max_prompt_tokens=max_prompt_tokens,
        limit=rows,
    )
    show_report(report)
    raise typer.Exit(0 if report.layouts else 2)


@data.command()
@reported
def convert(
    name: Annotated[str, typer.Argument(help="gsm8k or humaneval.")],
    source: Annotated[Path, typer.Argument(help="The file as it is published, or a directory of its splits.")],
    target: Annotated[Path, typer.Argument(help="The Parquet file to write, or the directory for the splits.")],
    form: Annotated[
        Literal["messages", "text"], typer.Option(help="Chat messages with verl's columns, or plain texts.")
    ] = "messages",
) -> None:
    """Make a published data set a file that a run can learn from."""
    from purerl.data.convert import convert

    for path, count in convert(name, str(source), str(target), form=form).items():
        typer.echo(f"{path}: {count:,} rows")
