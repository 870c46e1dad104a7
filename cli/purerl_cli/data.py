"""`purerl data`: inspect data files, convert published data sets, and add values of prompts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from purerl.errors import ConfigError
from purerl.system.terminal import escape
from purerl_cli.arguments import parse_arguments, parse_columns
from purerl_cli.options import App
from purerl_cli.output import with_debug
from purerl_cli.tables import show, show_report

__all__ = ["data"]

data = App(help="Inspect and convert data sets, and add columns to them.", no_args_is_help=True)


File = Annotated[
    str | None, typer.Argument(help="Parquet or JSON Lines file, glob pattern, or directory of a data set.")
]
Model = Annotated[
    str | None, typer.Option(metavar="DIR", help="Count tokens and render a row with the tokenizer of this model.")
]
SystemPrompt = Annotated[
    str | None, typer.Option(help="System prompt for conversations that have none, as data.system_prompt of a run.")
]
TemplateKwargs = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE", help="Chat template argument, as data.chat_template_kwargs of a run; repeatable."
    ),
]
MaxPromptTokens = Annotated[int | None, typer.Option(min=1, help="List the rows whose prompt has more tokens.")]
SpecialTokens = Annotated[
    Literal["keep", "escape"], typer.Option(help="Special tokens that prompts spell, as data.special_tokens of a run.")
]
StopString = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT", help="Show the tokens of a stop string, as rollout.stop_strings of a run; repeatable."
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=COLUMN", help="Another name of a column, as data.columns of a run; repeatable."),
]
Rows = Annotated[int | None, typer.Option(min=1, help="Inspect only the first ROWS rows.")]
Templates = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Try chat templates on rows of every kind, in place of FILE: a Jinja file, a directory of such files, "
        "or the directory of a model. With --model, with its tokenizer.",
    ),
]


@data.command()
@with_debug
def inspect(
    file: File = None,
    model: Model = None,
    system_prompt: SystemPrompt = None,
    chat_template_kwargs: TemplateKwargs = None,
    max_prompt_tokens: MaxPromptTokens = None,
    special_tokens: SpecialTokens = "keep",
    stop_string: StopString = None,
    columns: Columns = None,
    rows: Rows = None,
    templates: Templates = None,
) -> None:
    """Show the columns of a data file, what it can be used for, and the problems in its rows.

    Exits with status 2 if no run can use the file. With --templates, show the kinds of rows that work with a template.
    """
    if templates is not None:
        given = (file, system_prompt, chat_template_kwargs, max_prompt_tokens, stop_string, columns, rows)
        _inspect_templates(templates, model, alone=not any(given) and special_tokens == "keep")
        return
    if file is None:
        raise ConfigError("FILE is missing", need="a data file, or --templates PATH")
    from purerl.data.inspect import inspect
    from purerl.models.processor import load_processor
    from purerl.models.tokenizer import end_tokens, load_tokenizer
    from purerl.rewards.ground_truth import get_ground_truth
    from purerl.settings import Model as ModelSettings
    from purerl.settings import check_strings

    check_strings("--stop-string", stop_string or ())
    report = inspect(
        file,
        load_tokenizer(ModelSettings(model)) if model else None,
        open_processor=partial(load_processor, ModelSettings(model)) if model else None,
        system_prompt=system_prompt,
        chat_template_kwargs=parse_arguments(chat_template_kwargs or ()),
        max_prompt_tokens=max_prompt_tokens,
        special_tokens=special_tokens,
        stop_strings=tuple(stop_string or ()),
        extra_stop_tokens=end_tokens(ModelSettings(model)) if model else (),
        columns=parse_columns(columns or ()),
        get_ground_truth=get_ground_truth,
        limit=rows,
    )
    show_report(report)
    raise typer.Exit(0 if report.formats else 2)


def _inspect_templates(path: str, model: str | None, *, alone: bool) -> None:
    from purerl.templates.sources import read_templates
    from purerl.templates.table import make_table
    from purerl.templates.trials import try_template

    if not alone:
        raise ConfigError(
            "--templates", got="FILE or an option beside it", need="--templates PATH, or with --model DIR"
        )
    results = {each.name: try_template(each.tokenizer, each.stop_tokens) for each in read_templates(path, model)}
    table = make_table(results)
    show(*table.head, rows=table.rows)
    for number, message in table.messages.items():
        typer.echo(f"{number}: {escape(message)}")
    for name, cells in results.items() if len(results) == 1 else ():
        refused = dict.fromkeys(cell.message for cell in cells.values() if "\n" in cell.message)
        typer.echo("\n".join(["", f"The messages of {name}:", *refused]))
    if any(cell.result == "wrong" for cells in results.values() for cell in cells.values()):
        raise typer.Exit(1)


@data.command()
@with_debug
def convert(
    name: Annotated[str, typer.Argument(help="gsm8k, math, humaneval or reverse_text.")],
    source: Annotated[Path, typer.Argument(help="The published file, or a directory with one file per split.")],
    target: Annotated[Path, typer.Argument(help="The Parquet file to write, or a directory if SOURCE is one.")],
    prompt_format: Annotated[
        Literal["messages", "text"], typer.Option(help="Chat messages in verl's columns, or plain text.")
    ] = "messages",
) -> None:
    """Convert a published data set to Parquet files for training and evaluation."""
    from purerl.data.convert import convert

    for path, count in convert(name, str(source), str(target), prompt_format=prompt_format).items():
        typer.echo(f"{path}: {count:,} rows")


@data.command()
@with_debug
def values(
    source: Annotated[
        str, typer.Argument(help="Parquet or JSON Lines file, glob pattern, or directory of a data set.")
    ],
    results: Annotated[
        str, typer.Argument(help="Evaluation of the reference model on SOURCE: a file of purerl eval --json.")
    ],
    target: Annotated[str, typer.Argument(help="The Parquet file to write.")],
    beta: Annotated[
        float, typer.Option(help="In reward: near 0, a value is the best reward of a prompt; if it is large, the mean.")
    ] = 0.5,
    data_set: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of SOURCE in RESULTS, if it has several data sets.")
    ] = None,
) -> None:
    """Add the column optimal_value, which A*-PO learns from, to a data set."""
    from purerl.evaluation.optimal_values import add_optimal_values

    added = add_optimal_values(source, results, target, beta=beta, data_set=data_set)
    low, high = min(added.values), max(added.values)
    typer.echo(
        f"{target}: {len(added.values):,} rows, optimal_value from {low:.3f} to {high:.3f}, "
        f"of {added.completions:,} completions of {added.model}"
    )
