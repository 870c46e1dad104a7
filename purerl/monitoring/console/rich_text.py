"""Rich consoles that escape text: only the sequences of Rich itself reach the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from purerl.system.terminal import EscapedStream, escape

__all__ = ["escape_consoles", "printed_above", "render_escaped"]

_render = Console.render


def render_escaped(
    self: Console, renderable: RenderableType, options: ConsoleOptions | None = None
) -> Iterable[Segment]:
    """`Console.render` with escaped text (`purerl.system.terminal.escape`). Styles and control codes are kept."""
    for segment in _render(self, renderable, options):
        yield segment if segment.control else Segment(escape(segment.text), segment.style)


def escape_consoles() -> None:
    """Let all consoles of this process escape text, also those that Typer makes for help and errors."""
    Console.render = render_escaped


@contextmanager
def printed_above(console: Console) -> Iterator[None]:
    """While a live display is drawn on `console`, print what the block writes to stdout and stderr above it, escaped.

    The display must not redirect them itself: Rich takes codes and markup in what is written for its own.
    """
    above: Any = [EscapedStream(_Above(console, stream)) for stream in (sys.stdout, sys.stderr)]
    with redirect_stdout(above[0]), redirect_stderr(above[1]):
        try:
            yield
        finally:
            for stream in above:
                stream.flush()


class _Above:
    """A stream whose lines are printed on `console`. Everything else is that of `stream`."""

    def __init__(self, console: Console, stream: Any) -> None:
        self._console, self._stream, self._line = console, stream, ""

    @property
    def rich_proxied_file(self) -> Any:
        return getattr(self._stream, "rich_proxied_file", self._stream)

    def write(self, text: str) -> int:
        lines, newline, self._line = (self._line + text).rpartition("\n")
        if newline:
            self._console.print(Text(lines))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        if self._line:
            self.write("\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
