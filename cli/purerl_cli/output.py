"""What every command has in common: `--debug`, errors without a traceback, exit codes. And what `train` prints."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from purerl.errors import InputError, PurerlError
from purerl.files import REFUSED
from purerl.plugins import kind_of

if TYPE_CHECKING:
    from purerl.config.schema import RunConfig
    from purerl.loop.train import Summary

__all__ = ["EXIT_CODES", "described", "errors_reported", "finished", "reported"]


EXIT_CODES = "Exit codes: 0 all is well, 1 a run failed, 2 wrong input, 130 interrupted, 143 terminated."

_DEBUG = inspect.Parameter(
    "debug",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")],
)


def reported(command: Callable[..., None], *, interrupted: str = "") -> Callable[..., None]:
    """`command` with `--debug`, and with its errors reported as `errors_reported` does, which see."""
    signature = inspect.signature(command, eval_str=True)

    @wraps(command)
    def run(*, debug: bool, **arguments: Any) -> None:
        with errors_reported(debug=debug, interrupted=interrupted):
            command(**arguments)

    # Typer makes a command's options of its function's signature.
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), _DEBUG])  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = command.__annotations__ | {"debug": _DEBUG.annotation}
    return run


@contextmanager
def errors_reported(*, debug: bool, interrupted: str = "") -> Iterator[None]:
    """Leave with 2 where the input is wrong, with 1 where a run failed, with 130 on Ctrl-C, with 143 on SIGTERM.

    `interrupted` is what is said of the last two, beside that it is so. Any other error is a bug and keeps its
    traceback; with `debug` all do.
    """
    try:
        with _termination_raised(), _interruptions_kept():
            yield
            sys.stdout.flush()
    except PurerlError as error:
        if debug:
            traceback.print_exc()
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, InputError) else 1) from error
    except OSError as error:
        if error.errno not in REFUSED or debug:
            raise
        need, do = "room on the disk, and permission", "make room, mend the permissions, or name another file"
        typer.echo(f"error: {PurerlError('a file is refused', got=error, need=need, do=do)}", err=True)
        _drop_output()
        raise typer.Exit(1) from error
    except _Terminated as stop:
        typer.echo("; ".join(filter(None, ["terminated", interrupted])), err=True)
        raise typer.Exit(143) from stop
    except KeyboardInterrupt as stop:
        typer.echo("; ".join(filter(None, ["interrupted", interrupted])), err=True)
        raise typer.Exit(130) from stop


def _drop_output() -> None:
    """Have Python not try again, when it ends, to write what stdout refuses."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which ends everything that is open as Ctrl-C does."""


@contextmanager
def _termination_raised() -> Iterator[None]:
    """Raise SIGTERM in the block as an exception, so that a view gives the terminal back and workers are ended."""
    if threading.current_thread() is not threading.main_thread():  # others may not have handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _raise_terminated(number: int, frame: object) -> None:
    raise _Terminated


@contextmanager
def _interruptions_kept() -> Iterator[None]:
    """Let an interruption out as what it is, where a library that it ends raises an error of its own in its place.

    torch.save does: it closes an archive that was cut short, which fails.
    """
    try:
        yield
    except Exception as error:
        before: BaseException | None = error
        while before is not None and not isinstance(before, KeyboardInterrupt):
            before = before.__context__
        if before is None:
            raise
        raise before from error


def described(config: RunConfig) -> str:
    """`config`, checked, as TOML that `purerl train` takes; its plan stands above it in comments."""
    from purerl.config.check import check
    from purerl.config.plan import plan
    from purerl.config.structure import dumps

    check(config)
    comments = [f"# {line}" for line in plan(config).splitlines()]
    return "\n".join([*comments, "", dumps(config)])


def finished(config: RunConfig, summary: Summary) -> str:
    """What a run came to: its accuracy before and after, where it all is, and what to type next."""
    lines = [("model", f"{summary.model}, in Hugging Face's format"), ("checkpoint", str(summary.checkpoint))]
    if config.evaluate and "eval/accuracy" in summary.after:
        before, after = summary.before["eval/accuracy"], summary.after["eval/accuracy"]
        label = "accuracy" if set(config.evaluate.data.values()) & set(config.data.files) else "held-out accuracy"
        lines = [(label, f"{before:.3f} before, {after:.3f} after {summary.steps} steps"), *lines]
    # The file has every setting that was made, whatever the recipe is.
    same = f"purerl train {quote(str(summary.directory / 'config.toml'))}"
    # What is called . or .. has its name from where it is.
    place = summary.directory if summary.directory.name not in ("", "..") else summary.directory.resolve()
    again = f"{same} --set seed={config.seed + 1} --directory {quote(f'{place}-{config.seed + 1}')}"
    lines += [("metrics", str(summary.directory / "metrics.jsonl")), ("next", f"{again}    another seed")]
    if config.rollout is not None:
        other = "dr_grpo" if kind_of(config.algorithm) != "dr_grpo" else "grpo"
        settings = f"--set algorithm.kind={other} --directory {quote(f'{place}-{other}')}"
        lines += [("", f"{same} {settings}    another algorithm")]
    width = max(len(label) for label, _ in lines)
    return "\n".join(f"{label:<{width}}  {text}" for label, text in lines)
