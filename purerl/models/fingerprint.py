"""Fingerprints of models: identities of the models that a run starts from, so that a changed one is noticed.

Of a model on the hub it is the commit. Of a directory it is the size and a digest of each file that is loaded:

- files of at most 4 MiB: of all bytes
- larger files: of the first 4 MiB, which contain the names, types and shapes of a safetensors file, and of 64 blocks
  of 64 KiB, evenly spaced over the whole file
- with ``model.fingerprint = "full"``: of all bytes of every file
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from purerl.models.pretrained import cannot_load, loading
from purerl.settings import Model

__all__ = ["changed_files", "fingerprint"]

_LOADED = frozenset({".bin", ".jinja", ".json", ".model", ".py", ".pt", ".safetensors", ".txt"})
_START = 4 * 2**20
_BLOCKS, _BLOCK = 64, 64 * 2**10


def fingerprint(model: Model) -> dict[str, Any]:
    """The fingerprint of `model`: ``{"commit": ...}`` or ``{"files": {name: {"size": ..., "digest": ...}}}``.

    Raises: ConfigError if `model` is neither a directory nor a model on the hub.
    """
    folder = Path(model.path)
    if not folder.is_dir():
        return {"commit": _commit(model)}
    files = sorted(file for file in folder.iterdir() if file.suffix in _LOADED and file.is_file())
    is_full = model.fingerprint == "full"
    return {
        "files": {file.name: {"size": file.stat().st_size, "digest": _digest(file, full=is_full)} for file in files}
    }


def changed_files(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The names of the files that differ between the fingerprints `before` and `now` of two directories.

    >>> changed_files({"files": {"a": 1, "b": 2}}, {"files": {"a": 1, "b": 3, "c": 4}})
    ['b', 'c']
    """
    files, others = before.get("files", {}), now.get("files", {})
    return sorted(name for name in {*files, *others} if files.get(name) != others.get(name))


def _commit(model: Model) -> str:
    """The commit on the hub that `model` is loaded from. It takes one small request, or none if the hub is offline."""
    from transformers.utils.hub import cached_file, extract_commit_hash

    with loading("model", model):
        file = cached_file(model.path, "config.json", revision=model.revision)
    commit = extract_commit_hash(file, None)
    if commit is None:
        raise cannot_load("model", model, ValueError("its commit on the hub is not known"))
    return commit


def _digest(file: Path, *, full: bool) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with file.open("rb") as opened:
        for start, length in _parts(file.stat().st_size, full=full):
            opened.seek(start)
            for begin in range(0, length, _START):
                digest.update(opened.read(min(_START, length - begin)))
    return digest.hexdigest()


def _parts(size: int, *, full: bool) -> Iterator[tuple[int, int]]:
    """The start and the length of each part of a file that its digest covers."""
    if full or size <= _START:
        yield 0, size
        return
    yield 0, _START
    for k in range(_BLOCKS):
        yield _START + (size - _START - _BLOCK) * k // (_BLOCKS - 1), _BLOCK
