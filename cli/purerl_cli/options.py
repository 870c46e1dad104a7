"""Options that have been renamed: the old name is refused, and the message gives the new one."""

from __future__ import annotations

from collections.abc import Mapping

import typer
from typer.core import TyperCommand

from purerl.errors import ConfigError

__all__ = ["RENAMED", "Command"]

RENAMED: Mapping[str, str] = {
    "--answer": "--answer-extractor",
    "--examples": "--max-examples",
    "--form": "--prompt-format",
    "--pass-at": "--pass-at-k",
    "--rows": "--max-examples",
    "--samples": "--samples-per-prompt",
    "--system": "--system-prompt",
    "--template": "--chat-template-kwargs",
}
"""Old name of an option -> its new name. A name is only refused by commands that do not have it."""


class Command(TyperCommand):
    """A command that refuses the old names of its options."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
        options = {option for parameter in self.params for option in parameter.opts}
        for argument in args:
            name = argument.partition("=")[0]
            if name not in options and RENAMED.get(name) in options:
                need = f"an option that `{ctx.command_path} --help` lists"
                error = ConfigError(name, got="no such option", need=need, do=f"it is called {RENAMED[name]} here")
                typer.echo(f"error: {error}", err=True)
                raise typer.Exit(2)
        return super().parse_args(ctx, args)
