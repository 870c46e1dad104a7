"""The commands of `purerl`: they parse, build and call, and decide nothing themselves.

What a command needs is imported when it is called, so that `purerl --help` answers at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import purerl
from purerl_cli.data import data
from purerl_cli.exam import evaluate, sample
from purerl_cli.output import described, errors_reported, finished, listed
from purerl_cli.report import report

__all__ = ["app", "main"]

app = typer.Typer(
    help="Reinforcement learning for language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"purerl {purerl.__version__}")
        raise typer.Exit


@app.callback()
def _purerl(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Reinforcement learning for language models."""


@app.command()
def train(
    recipe: Annotated[
        str, typer.Argument(help="One of ours, module:function, file.py:function or file.toml.")
    ] = "addition",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; repeatable.")
    ] = None,
    directory: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the run lives; runs/<name> if not given.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Throw away the run that is there.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the configuration, print it as TOML with the plan, and leave.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """Do a run, or go on with it where it was left."""
    with errors_reported(debug=debug):
        from purerl.recipes import resolve

        config = resolve(recipe, settings or ())
        if dry_run:
            typer.echo(described(config))
            return
        typer.echo(finished(config, recipe, purerl.train(config, directory=directory, fresh=fresh)))


app.command("eval")(evaluate)
app.command()(sample)
app.add_typer(data, name="data")

algo = typer.Typer(help="Algorithms.", no_args_is_help=True)
app.add_typer(algo, name="algo")


@algo.command("list")
def algo_list() -> None:
    """Every algorithm: its papers, what it is made of, what it needs."""
    from purerl.config.catalogue import catalogue

    typer.echo(listed(catalogue()), nl=False)


app.command()(report)


def main() -> None:
    """The console script. As with `python -m`, what lies in the working directory can be imported."""
    sys.path.insert(0, str(Path.cwd()))
    app()
