"""The commands of `purerl`. They parse arguments, call functions of the package, and print the results.

A command imports the modules that it needs when it is called, so that `purerl --help` is fast.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import purerl
from purerl.errors import ConfigError
from purerl.monitoring.console.rich_text import escape_consoles
from purerl.system.garbage import without_collections
from purerl.system.phases import first_line, shown
from purerl.system.terminal import escape_output
from purerl_cli.algorithms import algo
from purerl_cli.arguments import all_settings, parse_rewards
from purerl_cli.chat import chat
from purerl_cli.data import data
from purerl_cli.doctor import doctor
from purerl_cli.evaluate import evaluate, sample
from purerl_cli.export import export
from purerl_cli.garbage import exit_without_collections
from purerl_cli.importing import import_
from purerl_cli.init import init
from purerl_cli.laws import laws
from purerl_cli.lazy_torch import import_torch_lazily
from purerl_cli.options import App
from purerl_cli.output import (
    EXIT_STATUS,
    annotate_config,
    check_config,
    describe_config,
    format_summary,
    print_notes,
    with_debug,
)
from purerl_cli.plan import Assignments, Recipe, Settings, plan
from purerl_cli.replay import replay
from purerl_cli.report import report
from purerl_cli.sandbox import sandbox
from purerl_cli.serve import serve
from purerl_cli.stacks import stacks
from purerl_cli.stopping import stop_signals

if TYPE_CHECKING:
    from purerl.config.schema import RunConfig

__all__ = ["app", "main"]

app = App(
    help="Reinforcement learning for language models.",
    epilog=EXIT_STATUS,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"purerl {purerl.__version__}")
        raise typer.Exit


@app.callback()
def _purerl(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Reinforcement learning for language models."""


@app.command()
@partial(with_debug, hint="the same command resumes from the last checkpoint, if there is one")
def train(
    recipe: Recipe = "addition",
    assignments: Assignments = None,
    settings: Settings = None,
    directory: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run directory.", show_default="runs/<name>")
    ] = None,
    reward: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=WEIGHT]",
            help="Reward function in place of the recipe's, module:function or file.py:function; repeatable.",
        ),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard the run in the directory and start again.")] = False,
    resume_from: Annotated[
        str | None,
        typer.Option(metavar="RUN[:STEP]", help="Start a new run from a checkpoint of another run directory."),
    ] = None,
    accept_changed_code: Annotated[
        bool, typer.Option("--accept-changed-code", help="Resume a run although your code was edited since.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check everything that can be checked without loading a model, print the configuration as TOML, and "
            "exit.",
        ),
    ] = False,
    check_code: Annotated[
        bool,
        typer.Option("--check-code", help="In a dry run of a TOML file, also import the functions that it names."),
    ] = False,
) -> None:
    """Start a run, or resume it."""
    from purerl.recipes import explain_recipe, settle

    if check_code and not dry_run:
        raise ConfigError("--check-code has no effect", need="--dry-run: a run always imports its functions")
    changes = all_settings(settings, assignments)
    changes = [*changes, *parse_rewards(reward or (), changes)]
    runs_code = not dry_run or check_code or not recipe.endswith(".toml")
    # Everything is checked before the modules of the training loop are imported.
    config, notes = settle(recipe, changes, partial(check_config, runs_code=runs_code))
    options: dict[str, Any] = {"fresh": fresh, "resume_from": resume_from, "accept_changed_code": accept_changed_code}
    if dry_run:
        with without_collections():
            described = describe_config(config, directory, runs_code=runs_code, **options)
            origins = {setting.key: setting.source for setting in explain_recipe(recipe, changes, config)}
        typer.echo(annotate_config(described, notes, origins))
        return
    _train(config, notes, directory=directory, **options)


def _train(config: RunConfig, notes: Sequence[str], **options: Any) -> None:
    """Train on this rank, or on all ranks of `config`, which are started."""
    from purerl.placement.launch import launch
    from purerl.placement.world import find_world

    world = find_world(os.environ)
    if (config.placement.ranks or 1) > 1 and world is None:
        raise typer.Exit(launch(["-m", "purerl_cli", *sys.argv[1:]], config.placement.ranks))
    if world is None or world.rank == 0:
        print_notes(notes)
    with stop_signals() as should_stop:
        summary = purerl.train(config, **options, should_stop=should_stop)
    if world is None or world.rank == 0:
        typer.echo(format_summary(config, summary))


@app.command()
@with_debug
@without_collections()
def recipes() -> None:
    """List the recipes and the settings that each of them needs."""
    from purerl.recipes import find, names, required_settings
    from purerl_cli.tables import show_recipes

    descriptions = {name: (find(name).__doc__ or "").partition("\n")[0] for name in names()}
    show_recipes((name, description, required_settings(name)) for name, description in descriptions.items())


@app.command()
@with_debug
@without_collections()
def config(
    recipe: Recipe = "addition",
    assignments: Assignments = None,
    settings: Settings = None,
    toml: Annotated[bool, typer.Option("--toml", help="Print a TOML file for `purerl train` instead.")] = False,
) -> None:
    """List all settings of a recipe: value, unit, meaning, and where the value comes from."""
    from purerl.config.structure import dumps
    from purerl.recipes import explain_recipe, settle
    from purerl_cli.tables import show_settings

    changes = all_settings(settings, assignments)
    if toml:
        config, notes = settle(recipe, changes)
        print_notes(notes)
        typer.echo(dumps(config), nl=False)
    else:
        show_settings(explain_recipe(recipe, changes))


app.command()(plan)
app.command()(doctor)
app.command("eval")(evaluate)
app.command()(sample)
app.command()(chat)
app.add_typer(data, name="data")
app.command()(init)
app.add_typer(import_, name="import")

app.add_typer(algo, name="algo")
app.command()(laws)
app.add_typer(sandbox, name="sandbox")
app.command()(report)
app.command()(replay)
app.command()(stacks)
app.command()(export)
app.command()(serve)


def main() -> None:
    """The entry point. As with `python -m`, modules in the working directory can be imported.

    What is printed is escaped: text of models, servers, files and errors cannot change the terminal.

    Unless OMP_WAIT_POLICY is set, waiting threads of torch sleep. With busy waiting they would slow down the threads
    that they wait for, if other processes use the same cores.
    """
    import_torch_lazily()
    escape_output()
    escape_consoles()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with suppress(FileNotFoundError):  # the working directory has been removed
        sys.path.insert(0, str(Path.cwd()))
    exit_without_collections()
    if "_PURERL_COMPLETE" in os.environ:  # a shell completes a line that the user is writing
        app()
    with shown(), first_line(" ".join(["purerl", *sys.argv[1:2]])):
        app()
