"""The progress of files that are being written: the size of those on the disk, for the lines of a phase."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from purerl.store.checkpoint import newest_whole
from purerl.system.memory_use import format_bytes

__all__ = ["checkpoint_progress", "written"]


def checkpoint_progress(path: Path) -> Callable[[], str]:
    """A function that says how much of the checkpoint at `path` is written, and the size of the one before it."""

    def progress() -> str:
        before = newest_whole(path.parent)
        return written(path, 0 if before is None or before == path else sum(_sizes(before)))

    return progress


def written(folder: Path, expected: int = 0) -> str:
    """The size of all files in `folder`, of about `expected` bytes if that is known; empty if there is no file.

    The folder may change meanwhile.
    """
    sizes = [*_sizes(folder)]
    if not sizes:
        return ""
    files = "1 file" if len(sizes) == 1 else f"{len(sizes):,} files"
    total = f" of about {format_bytes(expected)}" if expected else ""
    return f"{format_bytes(sum(sizes))}{total} in {files}"


def _sizes(folder: Path) -> Iterator[int]:
    for directory, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # removed or renamed since
                yield os.lstat(Path(directory, name)).st_size
