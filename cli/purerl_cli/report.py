"""`purerl report`: one HTML file about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purerl_cli.output import reported

__all__ = ["report"]


@reported
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories; they may still be running.")],
    output: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.")] = Path("report.html"),
    megabytes: Annotated[
        float, typer.Option(metavar="MB", help="Its size at most; the more, the more completions are in it.")
    ] = 5.0,
) -> None:
    """Curves and completions of one or more runs as one HTML file, to open in a browser or to send to someone."""
    from purerl.report.page import write_report

    written = write_report(runs, output, megabytes=megabytes)
    typer.echo(f"{written.path}  {written.size / 1e6:.1f} MB, {written.num_completions:,} completions")
