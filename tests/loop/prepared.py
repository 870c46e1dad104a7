"""The model and the problems of the default recipe, made once in a process and written for each run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from purerl.recipes import addition

__all__ = ["prepare"]


def prepare(folder: Path, seed: int) -> None:
    """Write what `addition.prepare` writes, in a twentieth of the time."""
    for name, content in _files(seed).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@cache
def _files(seed: int) -> Mapping[str, bytes]:
    with TemporaryDirectory() as name:
        addition.prepare(Path(name), seed)
        return {str(path.relative_to(name)): path.read_bytes() for path in Path(name).rglob("*") if path.is_file()}
