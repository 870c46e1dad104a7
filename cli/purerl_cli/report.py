"""`purerl report`: an HTML file about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purerl_cli.output import with_debug

__all__ = ["report"]


@with_debug
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories; the runs may be in progress.")],
    output: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.")] = Path("report.html"),
    megabytes: Annotated[
        float, typer.Option(metavar="MB", help="Maximum size of the file. A larger file contains more completions.")
    ] = 5.0,
) -> None:
    """Write metrics and completions of one or more runs to a single HTML file, which a browser can open."""
    from purerl.report.page import write_report

    written = write_report(runs, output, megabytes=megabytes)
    for message in written.skipped:
        typer.echo(f"warning: left out: {message}", err=True)
    typer.echo(f"{written.path}  {written.size / 1e6:.1f} MB, {written.num_completions:,} completions")
