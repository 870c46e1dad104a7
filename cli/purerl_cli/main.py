"""The commands of `purerl`: they parse, build and call, and decide nothing themselves.

What a command needs is imported when it is called, so that `purerl --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import purerl
from purerl_cli.completion import recipe_names, setting_keys
from purerl_cli.data import data
from purerl_cli.evaluate import evaluate, sample
from purerl_cli.output import EXIT_CODES, described, finished, reported
from purerl_cli.report import report

__all__ = ["app", "main"]

app = typer.Typer(
    help="Reinforcement learning for language models.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
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


Recipe = Annotated[
    str,
    typer.Argument(help="One of ours, module:function, file.py:function or file.toml.", autocompletion=recipe_names),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting, or give a recipe its argument; repeatable.",
        autocompletion=setting_keys,
    ),
]


@app.command()
@partial(reported, interrupted="the same command goes on from the last checkpoint, if there is one")
def train(
    recipe: Recipe = "addition",
    settings: Settings = None,
    directory: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the run lives; runs/<name> if not given.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Throw away the run that is there.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the configuration, print it as TOML with the plan, and leave.")
    ] = False,
) -> None:
    """Do a run, or go on with it where it was left."""
    from purerl.recipes import resolve

    config = resolve(recipe, settings or ())
    if dry_run:
        typer.echo(described(config))
        return
    typer.echo(finished(config, purerl.train(config, directory=directory, fresh=fresh)))


@app.command()
@reported
def recipes() -> None:
    """Every recipe: what it does, and what it needs."""
    from purerl.config.plan import needs
    from purerl.recipes import arguments, find, names, resolve
    from purerl_cli.tables import show_recipes

    found = [(name, find(name).__doc__ or "", resolve(name, arguments(name))) for name in names()]
    show_recipes((name, doc.partition("\n")[0], needs(config)) for name, doc, config in found)


@app.command()
@reported
def config(
    recipe: Recipe = "addition",
    settings: Settings = None,
    toml: Annotated[bool, typer.Option("--toml", help="Print a file that `purerl train` takes instead.")] = False,
) -> None:
    """Every setting of a recipe: its value, its unit, its meaning, and where the value came from."""
    from purerl.config.structure import dumps
    from purerl.recipes import explained, resolve
    from purerl_cli.tables import show_settings

    if toml:
        typer.echo(dumps(resolve(recipe, settings or ())), nl=False)
    else:
        show_settings(explained(recipe, settings or ()))


@app.command()
@reported
def doctor() -> None:
    """What this machine has, and what of purerl works on it; exit code 1 where something does not."""
    from purerl.doctor import examine
    from purerl_cli.tables import show_findings

    if not show_findings(examine()):
        raise typer.Exit(1)


app.command("eval")(evaluate)
app.command()(sample)
app.add_typer(data, name="data")

algo = typer.Typer(help="Algorithms.", no_args_is_help=True)
app.add_typer(algo, name="algo")


@algo.command("list")
@reported
def algo_list() -> None:
    """Every algorithm: its papers, what it is made of, what it needs."""
    from purerl.config.catalog import catalog
    from purerl_cli.tables import show_algorithms

    show_algorithms(catalog())


app.command()(report)


def main() -> None:
    """The console script. As with `python -m`, what lies in the working directory can be imported.

    torch's threads sleep while they wait, if not told otherwise: where others use the machine as well, threads that
    spin keep the ones that they wait for from working.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sys.path.insert(0, str(Path.cwd()))
    app()
