"""Typer with help and errors of purerl's style: flags without a type, and old names of options with the new ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from purerl.errors import ConfigError

__all__ = ["RENAMED", "App", "Command"]

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


class _PlainFlags:
    """The help of a command without a type of flags, which take no value."""

    def get_params(self, ctx: typer.Context) -> list[Any]:
        params = super().get_params(ctx)  # pyright: ignore[reportAttributeAccessIssue] - of the class beside it
        for parameter in params:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return params


class _Group(_PlainFlags, TyperGroup):
    """A group of commands."""


class Command(_PlainFlags, TyperCommand):
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


class App(typer.Typer):
    """A group of commands of the class `Command`."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(cls=_Group, **arguments)

    def command(self, name: str | None = None, **arguments: Any) -> Callable[[Any], Any]:
        return super().command(name, **{"cls": Command, **arguments})
