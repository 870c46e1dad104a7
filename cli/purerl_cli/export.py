"""`purerl export`: the model of a checkpoint in Hugging Face's format, in a directory or on the hub."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from purerl.errors import ConfigError
from purerl_cli.output import format_model, with_debug

__all__ = ["export"]


@partial(with_debug, hint="the export is incomplete")
def export(
    run: Annotated[Path, typer.Argument(help="Run directory; the run may be in progress.", show_default=False)],
    step: Annotated[str, typer.Option(metavar="N|latest|best", help="Step of the checkpoint.")] = "latest",
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory to write.", show_default="RUN/export/<step>")
    ] = None,
    push_to_hub: Annotated[
        str | None, typer.Option(metavar="NAME", help="Upload the model to this repository of the hub.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Create the repository as a private one.")] = False,
) -> None:
    """Export the model of a checkpoint in Hugging Face's format, with its tokenizer."""
    if not step.isdecimal() and step not in ("latest", "best"):
        raise ConfigError("--step", got=repr(step), need="a number, latest or best")
    if private and push_to_hub is None:
        raise ConfigError("--private has no effect", need="--push-to-hub", do="add --push-to-hub NAME")
    step = str(int(step)) if step.isdecimal() else step
    if push_to_hub is None:
        typer.echo(format_model(_export(run, step, output)))
        return
    from purerl_cli.hub import check_credentials, upload

    check_credentials()
    from purerl.system.private_files import private_folder

    with private_folder("purerl-export-") as temporary:
        folder = _export(run, step, output or temporary / "model")
        typer.echo(upload(folder, push_to_hub, private=private))


def _export(run: Path, step: str, output: Path | None) -> Path:
    from purerl.runs.export import export_model

    return export_model(run, step, output)
