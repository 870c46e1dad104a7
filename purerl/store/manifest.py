"""The manifest of a checkpoint: the size and the digest of each of its files, by the rank that wrote it.

    {"format": 2, "step": 20, "ranks": {"0": {"loop.pt": {"size": 1234, "digest": "sha256:..."}, ...}, "1": {...}}}

It is written last, so a directory without a manifest is not a checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import asdict, frozen

from purerl.errors import EngineError
from purerl.system.digests import digest_of
from purerl.system.files import remove, write_atomically
from purerl.system.nesting import read_json

__all__ = ["LOOP_FILE", "find_damage", "has_all_files", "is_committed", "uncommit", "write_manifest"]

LOOP_FILE = "loop.pt"
"""The file with the state of the loop, which every checkpoint has."""

_NAME = "manifest.json"
_FORMAT = 2
"""Changes when files of earlier versions cannot be loaded any more."""

_OTHER_VERSION = (
    "an earlier version of purerl wrote it, in a format that this version does not read; finish the run with that "
    "version, or let it export the model and start a new run from the export"
)


@frozen
class _File:
    size: int
    digest: str


class _DamageError(Exception):
    """The damage of a checkpoint."""


def write_manifest(path: Path, step: int, digests: Sequence[Mapping[str, str]]) -> None:
    """Commit the checkpoint of `step` in the directory `path`.

    `digests` has, for each rank, those of the files that it has written, by path in `path`. The other files are read,
    and count as files of rank 0.

    Raises: EngineError for the digest of a file that does not exist.
    """
    names = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
    known = {name for own in digests for name in own}
    if unknown := sorted(known.difference(names)):
        need, do = "digests of files that it has written", "test the trainer with purerl.testing.check_trainer"
        what, got = "a trainer returned digests of files that do not exist", ", ".join(unknown)
        raise EngineError(what, got=got, need=need, do=do)
    read = {name: digest_of(path / name) for name in names if name not in known}
    ranks = {
        str(rank): {name: asdict(_File((path / name).stat().st_size, digest)) for name, digest in sorted(own.items())}
        for rank, own in enumerate([{**digests[0], **read}, *digests[1:]])
    }
    write_atomically(path / _NAME, json.dumps({"format": _FORMAT, "step": step, "ranks": ranks}, indent=2))


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
    """The damage of the checkpoint at `path`; None if all files are as they were written.

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
        manifest = read_json((path / _NAME).read_text(encoding="utf-8"))
        if isinstance(manifest, dict) and manifest.keys() in ({"step", "files"}, {"step", "ranks"}):
            raise _DamageError(_OTHER_VERSION)
        files = {name: _File(**file) for rank in manifest["ranks"].values() for name, file in rank.items()}
        is_valid = manifest["format"] == _FORMAT and manifest["step"] == int(path.name) and LOOP_FILE in files
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
