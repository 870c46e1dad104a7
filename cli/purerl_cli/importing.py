"""`purerl import`: a configuration of another library as a TOML file for `purerl train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from purerl_cli.options import App
from purerl_cli.output import with_debug, write_config

__all__ = ["import_"]

import_ = App(
    help="Translate a configuration of TRL or verl to a TOML file of purerl. Nothing of it is run.",
    no_args_is_help=True,
)

Output = Annotated[
    Path | None, typer.Option(metavar="FILE", help="TOML file to write.", show_default="standard output")
]


@import_.command()
@with_debug
def trl(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE|COMMAND",
            help="Python script that creates a trainer, YAML file of TRL's command, or a command, in quotes or in a "
            "shell script: trl sft --FIELD VALUE, accelerate launch train.py --FIELD VALUE.",
            show_default=False,
        ),
    ],
    output: Output = None,
    trainer: Annotated[
        Literal["grpo", "sft", "dpo", "kto", "reward"] | None,
        typer.Option(help="Trainer of a YAML file, which does not name it.", show_default="by its fields"),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Processes that the script is started on; TRL counts batches per process.",
            show_default="those of the command, or 1",
        ),
    ] = None,
) -> None:
    """Translate a script, a command or a YAML file of TRL."""
    from purerl.porting.trl.importing import import_trl

    write_config(import_trl(source, trainer=trainer, processes=processes), output)


@import_.command()
@with_debug
def verl(
    source: Annotated[
        str,
        typer.Argument(
            metavar="COMMAND|FILE",
            help="Command in quotes, shell script with it, or YAML file of verl's configuration.",
            show_default=False,
        ),
    ],
    output: Output = None,
) -> None:
    """Translate a command, a shell script or a YAML file of verl."""
    from purerl.porting.verl.importing import import_verl

    write_config(import_verl(source), output)
