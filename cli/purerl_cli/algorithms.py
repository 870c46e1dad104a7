"""`purerl algo`: the algorithms, their modifiers, and the differences between two of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import attrs
import typer

from purerl.errors import ConfigError
from purerl.system.garbage import without_collections
from purerl.system.strict_json import to_json
from purerl_cli.options import App
from purerl_cli.output import with_debug

__all__ = ["algo"]

algo = App(help="Algorithms, their modifiers, and what other libraries compute.", no_args_is_help=True)

_SET = typer.Option("--set", metavar="NAME=VALUE", help="Change a setting or a modifier, such as kl_loss=0.01.")
_Name = Annotated[str, typer.Argument(help="An algorithm, a preset such as grpo@verl, or module:class of your own.")]


@algo.command("list")
@with_debug
@without_collections()
def algo_list() -> None:
    """List the algorithms: what each of them is, and what it needs."""
    from purerl.explain.catalog import FAMILIES, catalog
    from purerl_cli.tables import show_algorithms

    show_algorithms(FAMILIES, catalog())


@algo.command("modifiers")
@with_debug
@without_collections()
def algo_modifiers() -> None:
    """List the modifiers of algorithms: what they do, settings, papers. `--set algorithm.NAME=VALUE` adds one."""
    from purerl.explain.catalog import modifiers
    from purerl_cli.tables import show_modifiers

    show_modifiers(modifiers())


@algo.command("presets")
@with_debug
@without_collections()
def algo_presets() -> None:
    """List the presets: what other libraries compute. `--set algorithm.kind=NAME` chooses one."""
    from purerl.config.presets import presets
    from purerl_cli.tables import show

    rows = (
        (p.name, f"{p.library} {p.version}", p.summary, p.checked, "\n".join(p.differences)) for p in presets().values()
    )
    show("name", "library", "what it is", "checked", "differences", rows=rows)


@algo.command("show")
@with_debug
@without_collections()
def algo_show(
    name: _Name,
    settings: Annotated[list[str] | None, _SET] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    cite: Annotated[bool, typer.Option("--cite", help="Print only the sources, with their addresses.")] = False,
) -> None:
    """Show an algorithm: its equations, its composition, what it needs, and its settings."""
    from purerl.explain.algorithm import anatomy
    from purerl_cli.tables import show

    found = anatomy(name, settings or ())
    if cite:
        typer.echo("\n".join(found.citations))
    elif as_json:
        typer.echo(to_json(attrs.asdict(found), indent=2))
    else:
        typer.echo(f"{found.text}\n")
        for formula in found.formulas:
            typer.echo(formula)
        show("part", "function", rows=found.parts)
        show("needs", "what for", rows=found.needs)
        show("setting", "value", "meaning", rows=found.settings)


@algo.command("diff")
@with_debug
@without_collections()
def algo_diff(
    first: _Name,
    second: _Name,
    run: Annotated[Path | None, typer.Option(help="Compare on the last stored rollouts of this run.")] = None,
    step: Annotated[int | None, typer.Option(help="The step of these rollouts.")] = None,
    batch: Annotated[Path | None, typer.Option(help="Compare on the batch in this file of rollouts.")] = None,
) -> None:
    """Compare two algorithms part by part: what each difference alone changes on a batch, and all of them together.

    Changes are those of the second algorithm from the first. The batch is generated, unless --run or --batch names one.
    """
    _check_sources(run, step, batch)
    from purerl.explain.algorithm import algorithm_named
    from purerl.explain.comparison import compare, example_completions, read_completions, stored_completions
    from purerl_cli.tables import show_differences

    ours, theirs = algorithm_named(first), algorithm_named(second)
    if run is not None:
        completions = stored_completions(run, step, ours, theirs)
    elif batch is not None:
        completions = read_completions(batch, ours, theirs)
    else:
        completions = example_completions(ours, theirs)
    differences, total = compare(ours, theirs, completions)
    show_differences(first, second, differences, total)


def _check_sources(run: Path | None, step: int | None, batch: Path | None) -> None:
    """Refuse options that contradict each other. Nothing has been imported yet."""
    if run is not None and batch is not None:
        raise ConfigError("a batch", got="--run and --batch", need="one of them", do="leave out the other one")
    if step is not None and run is None:
        need = "--run, the directory of the run that has this step"
        raise ConfigError("--step", got=f"step {step} without --run", need=need, do="add --run, or leave out --step")
