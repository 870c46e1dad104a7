"""Tokens that commands print: each with its id and its text, in a line for each run of tokens of one origin.

In a terminal the lines have the color of their origin.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.text import Text

from purerl.system.terminal import escape

if TYPE_CHECKING:
    from purerl.data.shown_tokens import ShownEnding, ShownRow, ShownToken

__all__ = ["print_text", "show_endings", "show_tokens"]

_MAX_TOKENS_AT_END = 64  # that are shown of a long run of tokens, at its start and at its end
_STYLES = {"template": "dim", "system": "magenta", "user": "cyan", "image": "blue", "model": "bold green"}
_OTHER_STYLE = "yellow"  # of other roles, such as tools and turns of the assistant that are not learned


def print_text(text: Text) -> None:
    """Print `text`, with its colors if the output is a terminal, and without any change if it is not."""
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(text, soft_wrap=True, end="")
    else:
        typer.echo(text.plain, nl=False)


def show_tokens(row: ShownRow) -> None:
    """Print the tokens of `row`: a line for each run of tokens of one origin, long runs without their middle."""
    runs = [(origin, [*run]) for origin, run in groupby(row.tokens, key=lambda token: token.origin)]
    width = max((len(origin) for origin, _ in runs), default=0)
    lines = [_line(origin, width, _join_run([*map(_token, run)])) for origin, run in runs]
    print_text(Text("").join([*lines, *(Text(f"note: {escape(problem)}\n") for problem in row.problems)]))


def show_endings(endings: Sequence[ShownEnding]) -> None:
    """Print how a completion ends: by a stop token, or by a stop string, which may have other tokens in it."""
    width = max((len(ending.kind) for ending in endings), default=0)
    texts = ((each, " ".join(map(_token, each.tokens))) for each in endings)
    lines = [
        _line(each.kind, width, tokens if each.kind == "stop token" else f"{each.text!r}, alone {tokens}", "model")
        for each, tokens in texts
    ]
    print_text(Text("").join(lines))


def _line(name: str, width: int, text: str, origin: str | None = None) -> Text:
    return Text(f"{escape(f'{name:<{width}}  {text}')}\n", style=_STYLES.get(origin or name, _OTHER_STYLE))


def _token(token: ShownToken) -> str:
    return f"{token.id}:{token.text!r}"


def _join_run(texts: Sequence[str]) -> str:
    left_out = len(texts) - 2 * _MAX_TOKENS_AT_END
    if left_out <= 1:
        return " ".join(texts)
    return " ".join([*texts[:_MAX_TOKENS_AT_END], f"... {left_out:,} tokens ...", *texts[-_MAX_TOKENS_AT_END:]])
