"""Ways in which a file is damaged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["DAMAGES", "flip"]


def flip(path: Path) -> None:
    """Change one bit of the first byte of the file."""
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


def _replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: Mapping[str, Callable[[Path], object]] = {
    "one bit": flip,
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "shorter": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "empty": lambda path: path.write_bytes(b""),
    "{}": lambda path: path.write_text("{}"),
    "[]": lambda path: path.write_text("[]"),
    "null": lambda path: path.write_text("null"),
    "not text": lambda path: path.write_bytes(b"\xff\xfe"),
    "a directory": _replace_by_directory,
}
