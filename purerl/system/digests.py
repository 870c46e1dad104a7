"""Digests of files: SHA-256 with its name, computed while a file is written or when it is read.

SHA-256 is what `sha256sum` prints. On processors with instructions for it no other hash of the standard library is
faster, apart from SHA-1.
"""

from __future__ import annotations

from hashlib import file_digest, sha256
from pathlib import Path
from typing import IO, Any

__all__ = ["DigestWriter", "digest_of"]

_PREFIX = "sha256:"


class DigestWriter:
    """A binary file that is being written, or None for no file, and the digest of what was written."""

    def __init__(self, file: IO[bytes] | None = None) -> None:
        self._file, self._hash = file, sha256()

    def write(self, data: Any) -> int:
        """Write `data`, bytes or another contiguous buffer; return its number of bytes."""
        self._hash.update(data)
        return self._file.write(data) if self._file else memoryview(data).nbytes

    def flush(self) -> None:
        if self._file:
            self._file.flush()

    @property
    def digest(self) -> str:
        """The digest of everything that has been written so far."""
        return _PREFIX + self._hash.hexdigest()


def digest_of(path: Path) -> str:
    """The digest of the file at `path`. Raises OSError if it cannot be read."""
    with path.open("rb") as file:
        return _PREFIX + file_digest(file, "sha256").hexdigest()
