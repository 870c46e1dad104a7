"""`purerl doctor`: tests of the installation, or of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from purerl.errors import ConfigError
from purerl.system.garbage import without_collections
from purerl_cli.output import with_debug

__all__ = ["doctor"]


@with_debug
@without_collections()
def doctor(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="A run directory; the run may be in progress.", show_default=False),
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=PYTHON",
            help="Environment of an engine, such as vllm=engines/vllm/bin/python; repeatable.",
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Do the run of one step also if it has passed today.")] = False,
) -> None:
    """Test the installation on this computer, or whether the run in a directory learns.

    Without RUN, it lists what each engine can do, and exits with status 1 if a test fails. One of the tests is a run
    of one step. If it has passed today with the same code and packages, it is not done again without --again. With RUN,
    it prints the warnings of the run, and exits with status 1 if one of them is still present in the last step.
    """
    if run is not None and engine:
        raise ConfigError("--engine has no effect", got="a run directory", do="leave --engine or the directory out")
    if run is not None and again:
        raise ConfigError("--again has no effect", got="a run directory", do="leave --again or the directory out")
    if not (_is_installed(engine or (), again=again) if run is None else _is_healthy(run)):
        raise typer.Exit(1)


def _is_installed(engines: Sequence[str], *, again: bool) -> bool:
    from purerl.doctor import check_installation
    from purerl_cli.tables import show_findings

    return show_findings(check_installation(dict(map(_interpreter, engines)), again=again))


def _interpreter(engine: str) -> tuple[str, str]:
    """The kind of a generator and its interpreter. Raises ConfigError for a generator that is no server."""
    from purerl.plugins import names

    kind, _, python = engine.partition("=")
    kinds = [*filter(_is_server, names("generator"))]
    if kind not in kinds or not python:
        raise ConfigError("--engine", got=repr(engine), need=f"KIND=PYTHON, and the kind {' or '.join(kinds)}")
    return kind, python


def _is_server(kind: str) -> bool:
    from purerl.backends.plugin import GeneratorPlugin, engine_plugin

    plugin = engine_plugin("generator", kind)
    return isinstance(plugin, GeneratorPlugin) and plugin.command is not None


def _is_healthy(run: Path) -> bool:
    from purerl.monitoring.warnings.monitor import diagnose
    from purerl.monitoring.warnings.run import facts_of_run
    from purerl.report.read import check_runs
    from purerl.store.lines import read_lines
    from purerl_cli.warnings import show_episodes

    check_runs([run])
    records = read_lines(run / "metrics.jsonl")
    return show_episodes(str(run), records[-1]["step"], diagnose(records, facts_of_run(run)))
