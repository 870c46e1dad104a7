"""`purerl laws`: test a plain loss, or the module of an algorithm, with every law."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import attrs
import typer

from purerl.errors import ConfigError, nearest
from purerl.system.phases import phase
from purerl.system.strict_json import to_json
from purerl_cli.output import with_debug

if TYPE_CHECKING:
    from purerl.testing import LawResult

__all__ = ["laws"]


@with_debug
def laws(
    name: Annotated[
        str,
        typer.Argument(
            help="A loss, module:function or file.py:function; or an algorithm, by its name, module or file.py.",
            show_default=False,
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Value of another parameter, or config.NAME; repeatable."),
    ] = None,
    exempt: Annotated[
        list[str] | None,
        typer.Option(metavar="LAW=REASON", help="A law that the loss violates on purpose; repeatable."),
    ] = None,
    law: Annotated[list[str] | None, typer.Option(metavar="LAW", help="Test only this law; repeatable.")] = None,
    accumulate: Annotated[
        Literal["sum", "mean"] | None,
        typer.Option(help="How losses of micro-batches are accumulated.", show_default="by the parameters of the loss"),
    ] = None,
    unit: Annotated[Literal["row", "group"], typer.Option(help="What a micro-batch must not split.")] = "row",
    batches: Annotated[int, typer.Option(min=1, help="Random batches for each law.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the random batches.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Test a loss, a function with parameters of losses of verl, TRL, OpenRLHF or purerl, with every law.

    Of the module of an algorithm, a Config and a function algorithm, each variant is tested, and its settings are too.

    For each law: passed, failed with the smallest counterexample, exempt, or why it does not apply. Exits with status 1
    if a law fails.
    """
    from purerl.plugins import addresses, locate
    from purerl.testing import law_results, module_results

    tested = locate(addresses("algorithm").get(name, name))
    is_module = hasattr(tested, "Config") and hasattr(tested, "algorithm")
    if not is_module and not callable(tested):
        do, need = f"name a function: {name}:FUNCTION", "a function, or a module with Config and algorithm"
        raise ConfigError(f"the loss {name!r}", got=type(tested).__name__, need=need, do=None if ":" in name else do)
    if is_module:
        _refuse(name, settings=settings, exempt=exempt, accumulate=accumulate, unit=unit != "row")
        test = partial(module_results, tested)
    else:
        reasons = dict(_split(text, "--exempt", "LAW=REASON") for text in exempt or ())
        options = {"arguments": _arguments(settings or ()), "exempt": reasons, "accumulate": accumulate, "unit": unit}
        test = partial(law_results, tested, **options)
    with phase(f"testing {name} with every law"):
        results = test(laws=law, batches=batches, seed=seed)
    if as_json:
        typer.echo(to_json([result._asdict() for result in results], indent=2))
    else:
        _show(results)
    if any(result.status == "failed" for result in results):
        raise typer.Exit(1)


def _refuse(name: str, **options: object) -> None:
    """Raise ConfigError for options of losses, which have no effect on the algorithm `name`."""
    remedies = {"settings": "change the default in its Config", "exempt": "declare it in EXEMPTIONS of the module"}
    for option, value in options.items():
        if value:
            flag = "--set" if option == "settings" else f"--{option}"
            raise ConfigError(
                f"{flag} has no effect", got=f"the algorithm {name}", need="a loss", do=remedies.get(option)
            )


def _split(text: str, option: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(option, got=text, need=form)
    return name.strip(), value.strip()


def _arguments(settings: Sequence[str]) -> dict[str, Any]:
    """Values of parameters; those of ``config.NAME`` are settings of a `VerlConfig`."""
    from purerl.testing.losses import VerlConfig

    values = {name: _value(text) for name, text in (_split(setting, "--set", "NAME=VALUE") for setting in settings)}
    config = {name.removeprefix("config."): values.pop(name) for name in list(values) if name.startswith("config.")}
    known = attrs.fields_dict(VerlConfig)
    for name in config:
        if name not in known:
            raise ConfigError(f"--set config.{name}", need=f"one of {', '.join(known)}", do=nearest(name, known))
    return {**values, "config": VerlConfig(**config)} if config else values


def _value(text: str) -> Any:
    """A value in TOML, or otherwise a string."""
    from purerl.system.nesting import read_toml

    try:
        return read_toml(f"value = {text}")["value"]
    except ValueError:
        return text


_STYLES = {"passed": "green", "failed": "red bold", "exempt": "yellow", "does not apply": "dim"}


def _show(results: Sequence[LawResult]) -> None:
    from rich.text import Text

    from purerl_cli.tables import show

    reason = {"failed": "see below", "passed": ""}
    rows = ((r.law, Text(r.status, _STYLES[r.status]), reason.get(r.status, r.text)) for r in results)
    show("law", "result", "why", rows=rows)
    for result in results:
        if result.status == "failed":
            typer.echo(f"{result.text}\n")
    counts = Counter(result.status for result in results)
    words = {"does not apply": "not applicable"}
    typer.echo(", ".join(f"{counts[status]} {words.get(status, status)}" for status in _STYLES if counts[status]))
