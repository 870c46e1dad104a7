"""Text on a terminal, without effect on it: control characters and direction overrides become escape codes.

`escape_output` is for processes of purerl. Rich writes its own sequences around the escapes, see
`purerl.monitoring.console.terminal_text`.
"""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Iterable
from typing import Any

__all__ = ["EscapedStream", "escape", "escape_output"]

# Control codes (C0 without tabs and line breaks, DEL, C1), characters that change the direction of text, other
# characters that are not visible, and lone surrogates, which no encoding has. Joiners of letters and emoji are kept.
_UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\U000e0000-\U000e007f\ud800-\udfff]"
)
_MOVES = re.compile(r"\n*(?:\x1b\[A)*")  # of a progress bar of tqdm that is above or below another one


def escape(text: str, *, newlines: bool = True) -> str:
    r"""Replace characters that can change a terminal, such as escape sequences, by escape codes.

    Tabs are kept, and line breaks too unless `newlines` is false.

    >>> print(escape("red \x1b[31m, back\b, \u202eright to left, [bold]"))
    red \x1b[31m, back\x08, \u202eright to left, [bold]
    """
    text = text if text.isprintable() else _UNSAFE.sub(_code, text)
    return text if newlines else text.replace("\n", "\\n")


def _code(match: re.Match[str]) -> str:
    """The escape code of a character, as TOML and JSON have it too, which escape control codes below 128 themselves."""
    code = ord(match[0])
    return f"\\U{code:08x}" if code > 0xFFFF else f"\\u{code:04x}" if code > 0x7F else f"{match[0]!r}"[1:-1]


class EscapedStream:
    """A stream that escapes what is written to it. Everything else, such as ``buffer``, is that of `stream`.

    A Rich console writes to `stream` itself. The moves of the cursor by which tqdm draws progress bars are kept.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @property
    def rich_proxied_file(self) -> Any:
        """The stream to which a Rich console writes. Rich reads this attribute."""
        return getattr(self._stream, "rich_proxied_file", self._stream)

    def write(self, text: str) -> int:
        """Write `text` with escape codes."""
        caller = sys._getframe().f_back  # noqa: SLF001 -- who draws a bar; None if Python itself prints as it exits
        if caller is not None and str(caller.f_globals.get("__name__")).startswith("tqdm."):
            is_move, start = _MOVES.fullmatch(text) is not None, "\r" * text.startswith("\r")
            self._stream.write(text if is_move else start + escape(text.removeprefix("\r")))
        else:
            self._stream.write(escape(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write `lines` with escape codes."""
        self._stream.writelines(map(escape, lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def escape_output() -> None:
    """Let stdout and stderr of this process escape what is written to them, also warnings and tracebacks.

    A stream in ASCII becomes one in UTF-8. Otherwise Typer would replace it, and write to its buffer.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or isinstance(stream, EscapedStream):
            continue
        if stream.encoding is not None and codecs.lookup(stream.encoding).name == "ascii":
            stream.reconfigure(encoding="utf-8")
        setattr(sys, name, EscapedStream(stream))
