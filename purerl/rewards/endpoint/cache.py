"""Answers on disk, by the content of their requests. Any number of processes and runs may share a directory.

An entry is a file of its own, which appears completely or not at all. Two processes that compute the same entry write
the same file, and one of them wins. A file that cannot be read is written again.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from purerl.system.nesting import read_json
from purerl.system.strict_json import to_json

__all__ = ["AnswerCache", "key_of"]

_VERSION = 1


def key_of(url: str, path: str, body: Mapping[str, Any], variant: int) -> str:
    """A digest of everything that an answer depends on: the server, the whole request, and which sample it is."""
    content = to_json({"version": _VERSION, "url": url, "path": path, "body": body, "variant": variant}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


class AnswerCache:
    """The entries in `directory`, which is created for this user alone; None: there are none, and nothing is kept."""

    def __init__(self, directory: str | None) -> None:
        self._directory = None if directory is None else Path(directory).expanduser()

    def get(self, key: str) -> Any:
        """The answer with this key; None if there is none."""
        if self._directory is None:
            return None
        try:
            return read_json(self._file(self._directory, key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def put(self, key: str, answer: Any) -> None:
        """Keep `answer`. Raises OSError if the directory cannot be written."""
        if self._directory is None:
            return
        file = self._file(self._directory, key)
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.parent.mkdir(exist_ok=True)
        partial = file.with_name(f".{uuid.uuid4().hex}.partial")
        try:
            partial.write_text(to_json(answer), encoding="utf-8")
            os.replace(partial, file)
        finally:
            partial.unlink(missing_ok=True)

    def _file(self, directory: Path, key: str) -> Path:
        return directory / key[:2] / f"{key[2:]}.json"
