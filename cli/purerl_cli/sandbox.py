"""`purerl sandbox`: run a program that nobody has read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from purerl.errors import ConfigError
from purerl.system.terminal import escape
from purerl_cli.options import App
from purerl_cli.output import with_debug

if TYPE_CHECKING:
    from purerl.sandbox import Limits, Result

__all__ = ["sandbox"]

sandbox = App(help="Run programs in a sandbox.", no_args_is_help=True)


@sandbox.callback()
def _sandbox() -> None:
    """Run programs in a sandbox."""


Timeout = Annotated[float | None, typer.Option(help="Maximum duration in seconds.", show_default="10")]
CpuTime = Annotated[
    float | None, typer.Option(help="Maximum CPU time of all processes in seconds.", show_default="as --timeout")
]
MaxMemory = Annotated[
    str | None, typer.Option(metavar="MIB|SIZE", help="Maximum memory of all processes.", show_default="512MiB")
]
MaxProcesses = Annotated[int | None, typer.Option(help="Maximum number of processes and threads.", show_default="64")]
MaxOutput = Annotated[int | None, typer.Option(help="Maximum output in bytes.", show_default="1048576")]
MaxDisk = Annotated[
    str | None, typer.Option(metavar="MIB|SIZE", help="Maximum size of all files.", show_default="64MiB")
]
WithFile = Annotated[
    list[Path] | None,
    typer.Option(help="Another file in the working directory of the program; repeatable.", exists=True, dir_okay=False),
]


@sandbox.command()
@with_debug
def run(
    file: Annotated[Path, typer.Argument(help="The program.", exists=True, dir_okay=False, show_default=False)],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGUMENTS]...", help="Arguments of the program.", show_default=False)
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(help="python, bash, javascript, c, c++, java or perl.", show_default="by the ending of FILE"),
    ] = None,
    stdin: Annotated[
        Path | None, typer.Option(help="File that the program reads from stdin; -: stdin.", show_default="empty")
    ] = None,
    with_file: WithFile = None,
    timeout: Timeout = None,
    cpu_time: CpuTime = None,
    max_memory: MaxMemory = None,
    max_processes: MaxProcesses = None,
    max_output: MaxOutput = None,
    max_disk: MaxDisk = None,
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="Interpreter of Python programs.", show_default="that of purerl")
    ] = None,
    layers: Annotated[
        Literal["all", "without_landlock", "none"],
        typer.Option(help="What protects this computer; none: the program has all permissions of your user."),
    ] = "all",
) -> None:
    """Run a program in a sandbox: without network, and without files but its own.

    Its output is printed as it is, in a terminal with escape codes in place of control characters; and how it ended
    after it, on stderr. Exits with status 0 if its exit code is 0.
    """
    from purerl.sandbox import SandboxSettings
    from purerl.sandbox import run as run_command
    from purerl.sandbox.languages import command_of, find_language

    limits = _limits(
        timeout=timeout,
        cpu_time=cpu_time,
        max_memory=max_memory,
        max_processes=max_processes,
        max_output=max_output,
        max_disk=max_disk,
    )
    settings = SandboxSettings(layers=layers, python=python)
    command = command_of(language or find_language(file.name), file.name, tuple(arguments or ()), settings)
    files = _files([file, *(with_file or ())])
    result = run_command(command, files=files, stdin=_read(stdin), limits=limits, settings=settings)
    _show(result)
    raise typer.Exit(0 if result.status == "ok" else 1)


def _files(paths: Sequence[Path]) -> dict[str, bytes]:
    """The contents of files by their names in the working directory of the program."""
    files: dict[str, bytes] = {}
    for path in paths:
        if path.name in files:
            got, need = f"a second file {path.name!r}", "files with different names: all are in one directory"
            raise ConfigError(f"--with-file {path}", got=got, need=need, do="rename it")
        files[path.name] = path.read_bytes()
    return files


def _read(stdin: Path | None) -> bytes:
    if stdin is None:
        return b""
    if str(stdin) == "-":
        return sys.stdin.buffer.read()
    if not stdin.is_file():
        raise ConfigError("--stdin", got=str(stdin), need="a file, or - for stdin")
    return stdin.read_bytes()


def _limits(**options: Any) -> Limits:
    """Limits with the options that are given; a size may be a number of MiB."""
    from purerl.sandbox import Limits

    given = {name: value for name, value in options.items() if value is not None}
    return Limits(**{name: int(value) if str(value).isdecimal() else value for name, value in given.items()})


_STYLES = {"ok": "green", "error": "red", "killed": "red"}


def _show(result: Result) -> None:
    """Print the output of a program, and how it ended."""
    from rich.console import Console

    from purerl.system.memory_use import format_bytes

    for stream, output in ((sys.stdout, result.stdout), (sys.stderr, result.stderr)):
        if stream.isatty():
            stream.write(escape(output.decode(errors="replace")))
        else:
            stream.buffer.write(output)
        stream.flush()
    parts = [f"[{_STYLES.get(result.status, 'yellow')}]{result.status}[/]"]
    parts += [] if result.exit_code is None else [f"exit code {result.exit_code}"]
    parts += [f"{result.seconds:.3f} s", format_bytes(result.memory)]
    Console(stderr=True, highlight=False).print(", ".join(parts))
