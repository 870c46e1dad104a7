"""Functions that all commands use: `--debug`, error messages without a traceback, exit statuses.

It also has the output of `purerl train`.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from purerl.errors import ConfigError, InputError, PurerlError, RunStoppedError
from purerl.plugins import kind_of
from purerl.system.exhausted import explain_exhausted
from purerl.system.files import REFUSALS

if TYPE_CHECKING:
    from purerl.config.schema import RunConfig
    from purerl.loop.train import Summary

__all__ = [
    "EXIT_STATUS",
    "annotate_config",
    "check_config",
    "describe_config",
    "format_summary",
    "print_notes",
    "raise_interruption",
    "report_errors",
    "with_debug",
    "write_config",
]


EXIT_STATUS = (
    "Exit status: 0 success, 1 a run failed, 2 invalid input, 75 a run stopped on SIGTERM or SIGUSR1 with a checkpoint "
    "(run the command again), 130 interrupted, 143 terminated at once."
)
_STOPPED = 75  # EX_TEMPFAIL

_DEBUG = inspect.Parameter(
    "debug",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")],
)


def with_debug(command: Callable[..., None], *, hint: str = "") -> Callable[..., None]:
    """Add the option `--debug` to `command`, and report its errors with `report_errors`."""
    signature = inspect.signature(command, eval_str=True)

    @wraps(command)
    def run(*, debug: bool, **arguments: Any) -> None:
        with report_errors(debug=debug, hint=hint):
            command(**arguments)

    # Typer reads the options of a command from the signature of its function.
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), _DEBUG])  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = command.__annotations__ | {"debug": _DEBUG.annotation}
    return run


@contextmanager
def report_errors(*, debug: bool, hint: str = "") -> Iterator[None]:
    """Print the error that the block raises, and exit: status 2 for invalid input, 1 for a failed run.

    Ctrl-C exits with status 130 and SIGTERM with 143; `hint` is added to their messages. A run that was asked to stop
    exits with status 75. Memory, files or processes that are exhausted are a failed run. Any other exception is a bug
    and is not caught. With `debug`, every error is printed with its traceback.
    """
    try:
        with _raise_on_signals(), _unwrap_interruption():
            yield
            sys.stdout.flush()
    except RunStoppedError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(_STOPPED) from error
    except PurerlError as error:
        if debug:
            traceback.print_exc()
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, InputError) else 1) from error
    except OSError as error:
        if debug or (error.errno not in REFUSALS and explain_exhausted(error) is None):
            raise
        need, do = "free space, and permission", "free space, fix the permissions, or name another file"
        message = explain_exhausted(error) or PurerlError(
            "a file cannot be read or written", got=error, need=need, do=do
        )
        typer.echo(f"error: {message}", err=True)
        _discard_output()
        raise typer.Exit(1) from error
    except (MemoryError, RuntimeError, ImportError) as error:
        explained = explain_exhausted(error)
        if explained is None or debug:
            raise
        typer.echo(f"error: {explained}", err=True)
        raise typer.Exit(1) from error
    except _Terminated as interruption:
        typer.echo("; ".join(filter(None, ["terminated", hint])), err=True)
        raise typer.Exit(143) from interruption
    except KeyboardInterrupt as interruption:
        typer.echo("; ".join(filter(None, ["interrupted", hint])), err=True)
        raise typer.Exit(130) from interruption


def _discard_output() -> None:
    """If stdout cannot be written, redirect it. Otherwise Python tries to write the rest again when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Terminated(KeyboardInterrupt):
    """SIGTERM. It stops a run in the same way as Ctrl-C."""


_INTERRUPTIONS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: _Terminated}
_SECONDS_UNTIL_REPEATED = 10.0


@contextmanager
def _raise_on_signals() -> Iterator[None]:
    """Raise an exception in the block on SIGTERM and SIGINT, so that the terminal is restored and worker processes end.

    Python and C++ ignore exceptions in some places, for example in finalizers. The exception is therefore raised again
    every `_SECONDS_UNTIL_REPEATED`, until the block ends. A SIGINT that the parent process ignores stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set signal handlers
        yield
        return
    replaced = (signal.SIG_DFL, signal.default_int_handler)
    before = {number: signal.getsignal(number) for number in (*_INTERRUPTIONS, signal.SIGALRM)}
    for number in _INTERRUPTIONS:
        if before[number] in replaced:
            signal.signal(number, raise_interruption)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def raise_interruption(number: int, frame: object) -> None:
    """A signal handler that raises an exception, at once and again every `_SECONDS_UNTIL_REPEATED`."""
    signal.signal(signal.SIGALRM, lambda _, frame: raise_interruption(number, frame))
    signal.setitimer(signal.ITIMER_REAL, _SECONDS_UNTIL_REPEATED)
    raise _INTERRUPTIONS[signal.Signals(number)]


@contextmanager
def _unwrap_interruption() -> Iterator[None]:
    """If an interruption made a library raise an exception of its own, raise the interruption instead.

    torch.save does this: it closes the archive, and closing an incomplete archive fails.
    """
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, KeyboardInterrupt):
            cause = cause.__context__
        if cause is None:
            raise
        raise cause from error


def describe_config(config: RunConfig, directory: Path | None, *, runs_code: bool, **options: Any) -> str:
    """Do a dry run of `config` in `directory`, and return it as TOML for `purerl train`.

    A summary of the run, and what was not checked, are in comments at the top. `options` are further arguments of
    `purerl.runs.dry_run.dry_run`.
    """
    from purerl.config.plan import plan
    from purerl.config.stored import document
    from purerl.runs.dry_run import dry_run

    notes = dry_run(config, directory, runs_code=runs_code, **options)
    comments = [f"# {line}" for line in (*plan(config).splitlines(), *notes)]
    return "\n".join([*comments, "", document(config)])


def annotate_config(text: str, notes: Sequence[str], origins: Mapping[str, str]) -> str:
    """The result of `describe_config` with `notes` at its end of comments, and the origin of each value."""
    from purerl.config.listing import annotate

    head, blank, body = text.partition("\n\n")
    head = "\n".join([head, *(f"# {note}" for note in notes)])
    return f"{head}{blank}{annotate(body, origins)}"


def check_config(config: RunConfig, *, runs_code: bool) -> None:
    """Raise ConfigError as `purerl.config.check.check`; with `runs_code`, functions that it names are imported."""
    from purerl.config.check import check
    from purerl.config.untrusted import without_code

    check(*((config,) if runs_code else without_code(config)))


def print_notes(notes: Iterable[str]) -> None:
    """Print what a command does otherwise than its arguments say, on stderr."""
    for note in notes:
        typer.echo(f"note: {note}", err=True)


def _describe_change(summary: Summary, metric: str) -> str:
    """The metric before training, if it was measured, and after it."""
    before = f"{summary.before[metric]:.3f} before, " if metric in summary.before else ""
    return f"{before}{summary.after[metric]:.3f} after {summary.steps} steps"


def _describe_performance(measured: Mapping[str, float]) -> list[tuple[str, str]]:
    """Peak memory, tokens per second by phase, and utilization, as far as they were measured."""
    from purerl.system.memory_use import format_bytes

    rates = {"sampling": "sampled", "scoring": "scored", "training": "trained"}
    speed = [
        f"{phase} {rate:,.0f}" for phase, name in rates.items() if (rate := measured.get(f"{name}_tokens_per_second"))
    ]
    of = {"peak_device_memory": "of tensors on the device", "peak_process_memory": "resident in the process"}
    memory = [f"{format_bytes(measured[name])} {what}" for name, what in of.items() if name in measured]
    lines = [("tokens/s", ", ".join(speed)), ("peak memory", ", ".join(memory))]
    lines += [("MFU", f"{measured['mfu']:.1%}")] if "mfu" in measured else []
    return [line for line in lines if line[1]]


def format_model(path: Path) -> str:
    """The directory of an exported model, and its format if it is Hugging Face's."""
    from purerl.models.pretrained import is_in_hf_format

    return f"{path}, in Hugging Face's format" if is_in_hf_format(path) else str(path)


def format_summary(config: RunConfig, summary: Summary) -> str:
    """The output of a finished run: first and last accuracy and validation loss, paths, and commands to try next."""
    lines = [("model", format_model(summary.model)), ("checkpoint", str(summary.checkpoint))]
    is_trained_on = config.evaluate and set(config.evaluate.data.values()) & set(config.data.files)
    labels = {
        "eval/accuracy": "accuracy" if is_trained_on else "held-out accuracy",
        "validation/loss": "validation loss",
    }
    measured = [(label, _describe_change(summary, name)) for name, label in labels.items() if name in summary.after]
    lines = [*measured, *lines]
    lines += _describe_performance(summary.measured)
    if summary.best_checkpoint is not None:
        lines += [("best", f"{summary.best_checkpoint}, by {config.checkpoint.best}")]
    if summary.was_finished:
        lines = [("finished", "before this command: nothing to do; --fresh discards the run"), *lines]
    # config.toml contains every setting, also if the recipe is a Python function.
    command = f"purerl train {quote(str(summary.directory / 'config.toml'))}"
    # "." and ".." have no name that a suffix could be added to.
    path = summary.directory if summary.directory.name not in ("", "..") else summary.directory.resolve()
    reseeded = f"{command} --set seed={config.seed + 1} --directory {quote(f'{path}-{config.seed + 1}')}"
    lines += [("metrics", str(summary.directory / "metrics.jsonl")), ("next", f"{reseeded}    another seed")]
    if config.rollout is not None:
        kind = "dr_grpo" if kind_of(config.algorithm.base) != "dr_grpo" else "grpo"
        settings = f"--set algorithm.kind={kind} --directory {quote(f'{path}-{kind}')}"
        lines += [("", f"{command} {settings}    another algorithm")]
    width = max(len(label) for label, _ in lines)
    return "\n".join(f"{label:<{width}}  {text}" for label, text in lines)


def write_config(text: str, output: Path | None) -> None:
    """Print `text`, a TOML file, or write it into a new file."""
    if output is None:
        typer.echo(text, nl=False)
        return
    if output.exists():
        raise ConfigError("--output", got=f"{str(output)!r}, which exists", need="a new file", do="choose another name")
    output.write_text(text, encoding="utf-8")
    typer.echo(f"{output}: check it with `purerl train {output} --dry-run`")
