"""What the log of a server says about why it has failed."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path

__all__ = ["last_line", "reason"]

_ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception)\b|(?:^|\s)error: |out of memory|^Killed", re.IGNORECASE)
_NOISE = re.compile(r"See root cause|Engine core initialization failed|leaked |nanobind|^\W*$")
_PREFIX = re.compile(r"^\S*\([^)]*pid=\d+\)\s*|^(?:ERROR|CRITICAL)\s+\d\S* \d\S* \[[^\]]*\]\s*|^\[[^\]]*\]\s*")
_MAX_WIDTH, _LAST, _ERRORS = 300, 5, 3  # characters, and lines


def reason(log: Path) -> str:
    """The first errors in the file `log`, and its last lines: the first error is usually the cause."""
    errors: list[str] = []
    last: deque[str] = deque(maxlen=_LAST)
    try:
        with log.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                text = _plain(line)
                if _NOISE.search(text):
                    continue
                last.append(text)
                if len(errors) < _ERRORS and _ERROR.search(text) and text not in errors:
                    errors.append(text)
    except OSError as error:
        return f"its log cannot be read: {error}"
    lines = [*errors, *(line for line in last if line not in errors)]
    return "\n".join(f"    {line}" for line in lines) or "    (its log is empty)"


def last_line(log: Path) -> str:
    """The last line of the file `log`, for a message about a server that is not ready."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        return f"its log cannot be read: {error}"
    return f"the last line of {log} is {next(filter(None, map(_plain, reversed(lines))), '')!r}"


def _plain(line: str) -> str:
    """`line` without the prefixes of logging."""
    text = line.strip()
    while match := _PREFIX.match(text):
        text = text[match.end() :]
    return text.strip()[:_MAX_WIDTH]
