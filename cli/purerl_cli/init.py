"""`purerl init`: a TOML file for a model and data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from purerl_cli.output import with_debug, write_config

__all__ = ["init"]


@with_debug
def init(
    model: Annotated[str, typer.Option(metavar="MODEL", help="Directory of a model, or its name on the hub.")],
    data: Annotated[
        str,
        typer.Option(metavar="FILE", help="Parquet or JSON Lines file, glob pattern, or directory of a data set."),
    ],
    method: Annotated[
        Literal["grpo", "ppo", "sft", "dpo", "kto", "reward_model"] | None,
        typer.Option(help="Way to train.", show_default="by the columns of the data"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="TOML file to write.", show_default="standard output")
    ] = None,
) -> None:
    """Write a TOML file for a model and a data set. Its comments say what was assumed."""
    from purerl.runs.init import init

    write_config(init(model, data, method), output)
