"""The manifest of a checkpoint: the size and the digest of each of its files, by the rank that wrote it.

    {"step": 20, "ranks": {"0": {"loop.pt": {"size": 1234, "digest": "sha256:..."}, "policy/state.pt": {...}}}}

It is written last, so a directory without a manifest is not a checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from attrs import asdict, frozen

from purerl.digests import digest_of
from purerl.errors import EngineError
from purerl.files import remove, write_atomically

__all__ = ["LOOP_FILE", "find_damage", "has_all_files", "is_committed", "uncommit", "write_manifest"]

LOOP_FILE = "loop.pt"
"""The file with the state of the loop, which every checkpoint has."""

_NAME = "manifest.json"


@frozen
class _File:
    size: int
    digest: str


class _DamageError(Exception):
    """What is wrong with a checkpoint."""


def write_manifest(path: Path, step: int, digests: Mapping[str, str]) -> None:
    """Commit the checkpoint of `step` in the directory `path`, which was written by one rank.

    `digests` has those that are known, by path in `path`. The other files are read.

    Raises: EngineError for the digest of a file that does not exist.
    """
    names = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
    if unknown := sorted(set(digests).difference(names)):
        need, do = "digests of files that it has written", "test the trainer with purerl.testing.check_trainer"
        raise EngineError(
            "a trainer returned digests of files that do not exist", got=", ".join(unknown), need=need, do=do
        )
    files = {
        name: asdict(_File((path / name).stat().st_size, digests.get(name) or digest_of(path / name))) for name in names
    }
    write_atomically(path / _NAME, json.dumps({"step": step, "ranks": {"0": files}}, indent=2))


def is_committed(path: Path) -> bool:
    """Whether the directory `path` has a manifest. It may be damaged."""
    return (path / _NAME).exists()


def uncommit(path: Path) -> None:
    """Remove the manifest of the checkpoint at `path`, before its files are removed."""
    remove(path / _NAME)


def has_all_files(path: Path) -> bool:
    """Whether the manifest at `path` is valid, and all its files have their sizes.

    No file is read except for the manifest.
    """
    try:
        _check_sizes(path, _read(path))
    except _DamageError:
        return False
    return True


def find_damage(path: Path) -> str | None:
    """What is wrong with the checkpoint at `path`; None if all files are as they were written.

    All files are read. Raises: PermissionError if a file may not be read.
    """
    try:
        files = _read(path)
        _check_sizes(path, files)
        for name, file in files.items():
            if _digest(path / name) != file.digest:
                raise _DamageError(f"{name} has other content than was written")
    except _DamageError as damage:
        return str(damage)
    return None


def _read(path: Path) -> dict[str, _File]:
    """The files in the manifest at `path`, whose step must be the name of the directory."""
    try:
        manifest = json.loads((path / _NAME).read_text(encoding="utf-8"))
        if isinstance(manifest, dict) and manifest.keys() == {"step", "files"}:
            raise _DamageError(f"{_NAME} has no digests, so nothing can be verified: purerl 0.2 or before wrote it")
        files = {name: _File(**file) for rank in manifest["ranks"].values() for name, file in rank.items()}
        is_valid = manifest["step"] == int(path.name) and LOOP_FILE in files
    except PermissionError:
        raise
    except OSError as error:
        raise _DamageError(f"{_NAME} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _DamageError(f"{_NAME} is damaged") from error
    if not is_valid:
        raise _DamageError(f"{_NAME} does not belong to it")
    return files


def _check_sizes(path: Path, files: Mapping[str, _File]) -> None:
    for name, file in files.items():
        if not (path / name).is_file():
            raise _DamageError(f"{name} is missing")
        if (size := (path / name).stat().st_size) != file.size:
            raise _DamageError(f"{name} has {size} bytes instead of {file.size}")


def _digest(path: Path) -> str:
    try:
        return digest_of(path)
    except PermissionError:
        raise
    except OSError as error:
        raise _DamageError(f"{path.name} cannot be read: {error.strerror}") from error
