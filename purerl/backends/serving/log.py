"""The log of a server: why the server has failed, and a limit for its size."""

from __future__ import annotations

import re
import shutil
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

__all__ = ["MAX_LOGS", "errors", "last_line", "limit_logs", "not_loaded", "reason"]

MAX_LOGS = 20_000_000
"""Bytes of all logs of the servers that a run has started on a host."""

_ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception)\b|(?:^|\s)error: |out of memory|^Killed", re.IGNORECASE)
_NOISE = re.compile(r"See root cause|Engine core initialization failed|leaked |nanobind|^\W*$")
_PREFIX = re.compile(r"^\S*\([^)]*pid=\d+\)\s*|^(?:ERROR|CRITICAL)\s+\d\S* \d\S* \[[^\]]*\]\s*|^\[[^\]]*\]\s*")
_NOT_LOADED = re.compile(r"(\w+): Failed to load weights|\w* ?weights were not loaded from")
_COMPUTED = "RotaryEmbedding"  # the end of the names of layers whose tensors are computed, and in no file of weights
_PACKED = re.compile(r"purerl has packed the weight of (\w+) again")
_MAX_WIDTH, _LAST, _ERRORS = 300, 5, 3  # characters, and lines
_OLDER = ".older"  # before the suffix of a file with the older part of a log


def reason(log: Path) -> str:
    """The first errors in the file `log`, and its last lines: the first error is usually the cause."""
    try:
        last = deque(_lines(log), maxlen=_LAST)
        first = [*islice(errors(log), _ERRORS)]
    except OSError as error:
        return f"its log cannot be read: {error}"
    lines = [*first, *(line for line in last if line not in first)]
    return "\n".join(f"    {line}" for line in lines) or "    (its log is empty)"


def errors(log: Path) -> Iterator[str]:
    """The different lines of `log`, with its older part, that say that something has failed. Raises OSError."""
    seen = set[str]()
    for line in _lines(log):
        if _ERROR.search(line) and line not in seen:
            seen.add(line)
            yield line


def not_loaded(log: Path) -> list[str]:
    """The different texts in `log` that say that weights were not loaded, unless purerl's receiver did it afterwards.

    Raises: OSError.
    """
    if not re.search(_NOT_LOADED.pattern.encode(), log.read_bytes()):
        return []  # nearly always, and much faster than reading lines
    lines = [*dict.fromkeys(_lines(log))]
    packed = {match[1] for line in lines if (match := _PACKED.search(line))}
    found = [(match[1] or "", line[match.start() :]) for line in lines if (match := _NOT_LOADED.search(line))]
    return [*dict.fromkeys(text for layer, text in found if layer not in packed and not layer.endswith(_COMPUTED))]


def _lines(log: Path) -> Iterator[str]:
    for path in (_older(log), log):
        if path == log or path.exists():
            with path.open(encoding="utf-8", errors="replace") as file:
                yield from (text for line in file if not _NOISE.search(text := _plain(line)))


def _older(log: Path) -> Path:
    return log.with_name(f"{log.stem}{_OLDER}{log.suffix}")


def limit_logs(first: Path, newest: Path, size: int) -> None:
    """Let the logs of a server have at most `size` bytes, about: `first` is that of its first start.

    `newest` is being written. When it has half of them, it is moved to a file with the older part of the log, which it
    replaces, and begins again; lines that are written meanwhile are lost. Then the oldest logs of the server are
    removed.
    """
    if newest.exists() and newest.stat().st_size > size // 2:
        shutil.copyfile(newest, _older(newest))
        with newest.open("r+b") as file:  # its program appends to it
            file.truncate(0)
    others = [path for path in first.parent.iterdir() if _is_of(path, first) and path not in (newest, _older(newest))]
    total = sum(path.stat().st_size for path in (*others, newest, _older(newest)) if path.exists())
    for path in sorted(others, key=lambda path: path.stat().st_mtime):
        if total <= size:
            return
        total -= path.stat().st_size
        path.unlink()


def _is_of(path: Path, first: Path) -> bool:
    """Whether `path` is a log of the server whose first start has the log `first`."""
    name = f"{re.escape(first.stem)}(-[0-9]+)?({re.escape(_OLDER)})?{re.escape(first.suffix)}"
    return re.fullmatch(name, path.name) is not None


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
