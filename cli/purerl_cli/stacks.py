"""`purerl stacks`: what the processes of a run are doing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purerl_cli.output import with_debug

__all__ = ["stacks"]


@with_debug
def stacks(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run in progress.")],
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="How long to wait for the answers of its processes.")
    ] = 15.0,
) -> None:
    """Print the stacks of all threads of each process of a run: its ranks and actors, also on other hosts."""
    from purerl.placement.stacks import request_stacks

    answers = request_stacks(run, timeout)
    for answer in answers:
        typer.echo(f"== {answer.name}, {answer.place}")
        remedy = f"on its host: py-spy dump --pid {answer.place.split()[1]}"
        typer.echo(answer.text or f"no answer in {timeout:g} seconds, or it has ended; {remedy}\n")
    if any(answer.text is None for answer in answers):
        raise typer.Exit(1)
