"""`purerl chat`: a conversation with one or more models in the terminal."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from purerl.errors import ConfigError, InputError
from purerl.system.devices.kinds import DEVICE
from purerl.system.terminal import escape
from purerl_cli.arguments import parse_arguments
from purerl_cli.output import with_debug

if TYPE_CHECKING:
    from rich.table import Table

    from purerl.runs.chat import Conversation

__all__ = ["chat"]

_COMMANDS = "/system TEXT starts again with another system prompt, /reset without one of the turns so far, /quit ends"


@partial(with_debug, hint="the conversation is not saved")
def chat(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL|RUN[:STEP]...",
            help="A directory in Hugging Face's format, a name on the hub, or a run directory with a step or best; "
            "several answer side by side.",
            show_default=False,
        ),
    ],
    system_prompt: Annotated[
        str | None, typer.Option(help="System prompt.", show_default="that of the run, or none")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, help="Sampling temperature; 0: greedy decoding.")] = 0.7,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens of an answer.")] = 1024,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampling.")] = 0,
    chat_template_kwargs: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Argument of the chat template; repeatable.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="Of the weights: float32, bfloat16, ..., auto.", show_default="float32"),
    ] = None,
    device: Annotated[str, typer.Option(help=f"{DEVICE}.")] = "auto",
) -> None:
    """Talk to a model or to a checkpoint of a run; Ctrl-C ends an answer.

    /system TEXT starts again with another system prompt, /reset without the turns so far, and /quit ends. Without a
    terminal, each line of standard input is a message.
    """
    typer.echo("loading: " + escape(", ".join(models), newlines=False), err=True)
    from purerl.runs.chat import ChatSettings, open_conversation

    kwargs = parse_arguments(chat_template_kwargs) if chat_template_kwargs else None
    settings = ChatSettings(
        system_prompt=system_prompt,
        chat_template_kwargs=kwargs,
        temperature=temperature,
        max_tokens=max_tokens,
        seed=seed,
        dtype=dtype,
        device=device,
    )
    with ExitStack() as stack:
        conversations = [open_conversation(name, settings, stack) for name in models]
        if sys.stdin.isatty():
            typer.echo(_COMMANDS, err=True)
        for line in _lines():
            if line.startswith("/"):
                if not _command(conversations, line):
                    break
            elif line:
                _answer(conversations, line)


def _lines() -> Iterator[str]:
    """The lines that are typed, or those of standard input if it is no terminal."""
    if not sys.stdin.isatty():
        yield from (line.strip() for line in sys.stdin)
        return
    import readline  # noqa: F401 - lets input() edit lines and remember them

    while True:
        try:
            line = input("> ")
        except EOFError:
            typer.echo()
            return
        yield line.strip()


def _command(conversations: Sequence[Conversation], line: str) -> bool:
    """Carry out the command `line`; return whether the conversation continues."""
    name, _, text = line.partition(" ")
    if name == "/quit":
        return False
    if name == "/reset":
        for conversation in conversations:
            conversation.reset()
    elif name == "/system":
        for conversation in conversations:
            conversation.set_system_prompt(text.strip() or None)
    else:
        error = ConfigError(f"command {escape(name)!r}", need="/system TEXT, /reset or /quit")
        typer.echo(f"error: {error}", err=True)
    return True


def _answer(conversations: Sequence[Conversation], question: str) -> None:
    """Print the answers to `question` while they are sampled. An answer that Ctrl-C ends stays in the conversation."""
    show = _stream_text if len(conversations) == 1 else _stream_columns if sys.stdout.isatty() else _print_each
    try:
        show(conversations, question)
    except InputError as error:
        typer.echo(f"error: {error}", err=True)
        return
    for conversation in conversations:
        whose = "" if len(conversations) == 1 else f" of {escape(conversation.name, newlines=False)}"
        if conversation.finish in ("length", "cancelled"):
            why = "interrupted" if conversation.finish == "cancelled" else "ended by the maximum number of tokens"
            typer.echo(f"(the answer{whose} was {why})", err=True)


def _growing(conversations: Sequence[Conversation], question: str) -> Iterator[None]:
    """Yield each time that the answers have grown, until they end or Ctrl-C ends them."""
    from purerl.runs.chat import stream

    with _interruption() as interrupted:
        for _ in stream(conversations, question):
            if interrupted.is_set():
                for conversation in conversations:
                    conversation.cancel()
            yield


@contextmanager
def _interruption() -> Iterator[threading.Event]:
    """Set the event on the first Ctrl-C in the block. Any other one does what it did before."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set signal handlers
        yield event
        return
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, before)
        event.set()

    signal.signal(signal.SIGINT, note)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


def _stream_text(conversations: Sequence[Conversation], question: str) -> None:
    [conversation], shown = conversations, 0
    for _ in _growing(conversations, question):
        typer.echo(escape(conversation.text[shown:]), nl=False)
        sys.stdout.flush()
        shown = len(conversation.text)
    typer.echo()


def _stream_columns(conversations: Sequence[Conversation], question: str) -> None:
    from rich.console import Console
    from rich.live import Live

    with Live(_columns(conversations), console=Console(highlight=False), auto_refresh=False) as live:
        for _ in _growing(conversations, question):
            live.update(_columns(conversations), refresh=True)


def _columns(conversations: Sequence[Conversation]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, expand=True)
    for conversation in conversations:
        table.add_column(Text(escape(conversation.name, newlines=False)), ratio=1, overflow="fold")
    table.add_row(*(Text(escape(conversation.text)) for conversation in conversations))
    return table


def _print_each(conversations: Sequence[Conversation], question: str) -> None:
    for _ in _growing(conversations, question):
        pass
    for conversation in conversations:
        typer.echo(f"[{escape(conversation.name, newlines=False)}]\n{escape(conversation.text)}")
