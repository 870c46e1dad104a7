"""Files that appear whole, or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["folder_at_once", "sync_folder", "write_at_once"]


def write_at_once(path: Path, text: str) -> None:
    """Write `text` to `path`: whoever reads it sees the file before or the file after, whatever is killed when."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    sync_folder(path.parent)


@contextmanager
def folder_at_once(path: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `path`, in place of what is there, when the block ends."""
    partial = path.with_name(path.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    sync_folder(partial)
    shutil.rmtree(path, ignore_errors=True)
    os.replace(partial, path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in `path` durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
