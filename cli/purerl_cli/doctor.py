"""`purerl doctor`: tests of the installation, or of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purerl_cli.output import with_debug

__all__ = ["doctor"]


@with_debug
def doctor(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="A run directory; the run may be in progress.", show_default=False),
    ] = None,
) -> None:
    """Test the installation on this computer, or whether the run in a directory learns.

    Without RUN, it lists what each engine can do, and exits with status 1 if a test fails. With RUN, it prints the
    warnings of the run, and exits with status 1 if one of them is still present in the last step.
    """
    if not (_is_installed() if run is None else _is_healthy(run)):
        raise typer.Exit(1)


def _is_installed() -> bool:
    from purerl.doctor import check_installation
    from purerl_cli.tables import show_findings

    return show_findings(check_installation())


def _is_healthy(run: Path) -> bool:
    from purerl.diagnosis.monitor import diagnose
    from purerl.diagnosis.run import facts_of_run
    from purerl.report.read import check_runs
    from purerl.store.lines import read_lines
    from purerl_cli.warnings import show_episodes

    check_runs([run])
    records = read_lines(run / "metrics.jsonl")
    return show_episodes(str(run), records[-1]["step"], diagnose(records, facts_of_run(run)))
