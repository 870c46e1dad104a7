"""What commands print: errors without a traceback, and configurations with their plan."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from purerl.errors import InputError, PurerlError

if TYPE_CHECKING:
    from purerl.config.schema import RunConfig
    from purerl.loop.train import Summary

__all__ = ["described", "errors_reported", "finished"]


@contextmanager
def errors_reported(*, debug: bool) -> Iterator[None]:
    """Leave with 2 where the input is wrong, with 1 where a run failed, with 130 on Ctrl-C.

    Any other error is a bug and keeps its traceback; with `debug` all do.
    """
    try:
        yield
    except PurerlError as error:
        if debug:
            traceback.print_exc()
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, InputError) else 1) from error
    except KeyboardInterrupt as stop:
        typer.echo("interrupted; the same command goes on from the last checkpoint", err=True)
        raise typer.Exit(130) from stop


def described(config: RunConfig) -> str:
    """`config`, checked, as TOML that `purerl train` takes; its plan stands above it in comments."""
    from purerl.config.check import check
    from purerl.config.plan import plan
    from purerl.config.structure import dumps

    check(config)
    comments = [f"# {line}" for line in plan(config).splitlines()]
    return "\n".join([*comments, "", dumps(config)])


def finished(summary: Summary) -> str:
    """What a run came to: each evaluation before it and after it, and where the model is."""
    both = [name for name in summary.after if name in summary.before]
    evaluations = [f"{name}: {summary.before[name]:.3g} -> {summary.after[name]:.3g}" for name in both]
    return "\n".join([f"{summary.steps} steps", *evaluations, f"the model is in {summary.model}"])
