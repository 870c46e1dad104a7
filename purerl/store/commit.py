"""Writing a checkpoint: staged by the main thread, and then written by this or another thread, on all ranks.

1. A directory is created.
2. Trainers stage what they save. From then on they may train.
3. Every rank writes and flushes its files, and tells rank 0 their digests.
4. Rank 0 writes the state of the loop and flushes the records of the run; the manifest, last, commits the checkpoint.
5. Old checkpoints are removed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import torch
from attrs import field, frozen

from purerl.backends.checkpoint_staging import StagedState, SupportsStaging
from purerl.errors import CheckpointError
from purerl.ranks import ONE_RANK, Ranks
from purerl.store.checkpoint import clean, newest_whole, path_of, remove_checkpoint
from purerl.store.manifest import LOOP_FILE, write_manifest
from purerl.system.digests import DigestWriter
from purerl.system.files import follow_umask, sync, sync_tree

__all__ = ["StagedCheckpoint", "SupportsSave", "commit", "stage"]


class SupportsSave(Protocol):
    """Something that writes files into a directory, and may return their digests: a `Trainer`, for example."""

    def save(self, path: Path) -> Mapping[str, str] | None: ...


def commit(
    folder: Path,
    step: int,
    state: Mapping[str, Any],
    trainers: Mapping[str, SupportsSave],
    *,
    keep: int,
    protected: Collection[int] = (),
    ranks: Ranks = ONE_RANK,
) -> Path:
    """Save the `state` of the loop after `step`, and all trainers; then remove all but the newest `keep` checkpoints.

    The arguments are those of `stage`.

    Raises: CheckpointError if it cannot be written. It is removed then, and earlier checkpoints are unchanged.
    """
    return stage(folder, step, state, trainers, keep=keep, protected=protected, ranks=ranks).write(ranks)


def stage(
    folder: Path,
    step: int,
    state: Mapping[str, Any],
    trainers: Mapping[str, SupportsSave],
    others: Mapping[str, StagedState] | None = None,
    *,
    keep: int,
    protected: Collection[int] = (),
    flush_records: Callable[[], object] = lambda: None,
    ranks: Ranks = ONE_RANK,
    in_background: bool = False,
) -> StagedCheckpoint:
    """The checkpoint of `step`, ready to be written. All `ranks` call it.

    folder         the directory of all checkpoints
    state          the state of the loop: numbers, strings, tensors, and lists, tuples and dicts of them
    trainers       by the name of a directory in the checkpoint. They save collectively
    others         what is staged already, by the name of its directory
    keep           the number of newest checkpoints that are not removed
    protected      steps whose checkpoints are not removed
    flush_records  what rank 0 has to do before the checkpoint is committed
    in_background  another thread will write while trainers train. A trainer that cannot stage saves now

    Raises: CheckpointError if a trainer that cannot stage cannot save.
    """
    path = path_of(folder, step)
    with _Removed(path, ranks):
        ranks.on_first(lambda: _create(path, [*trainers, *(others or {})]), "creating a checkpoint")
        convert = _stage_one if in_background else _Saving
        parts = {name: convert(trainer, path / name) for name, trainer in trainers.items()}
    return StagedCheckpoint(step, path, _packed(state), {**parts, **(others or {})}, keep, protected, flush_records)


@frozen
class _Saving:
    """A trainer that saves when it is written."""

    trainer: SupportsSave
    path: Path

    def write(self, path: Path, ranks: Ranks) -> Mapping[str, str] | None:
        return self.trainer.save(path)


@frozen
class _Saved:
    """A checkpoint that a trainer has saved already."""

    digests: Mapping[str, str] | None

    def write(self, path: Path, ranks: Ranks) -> Mapping[str, str] | None:
        return self.digests


def _stage_one(trainer: SupportsSave, path: Path) -> StagedState:
    return trainer.stage() if isinstance(trainer, SupportsStaging) else _Saved(trainer.save(path))


def _create(path: Path, names: Iterable[str]) -> None:
    """Create the directory of a checkpoint, with a directory for each of `names`."""
    remove_checkpoint(path)
    path.parent.mkdir(exist_ok=True)
    path.mkdir()
    for name in names:
        (path / name).mkdir(parents=True)


def _packed(state: Mapping[str, Any]) -> bytes:
    torch.save(dict(state), file := BytesIO())
    return file.getvalue()


@frozen
class StagedCheckpoint:
    """A checkpoint of `step` that is not written yet; see `stage`."""

    step: int
    path: Path
    _state: bytes = field(repr=False)
    _parts: Mapping[str, StagedState] = field(repr=False)
    _keep: int
    _protected: Collection[int]
    _flush_records: Callable[[], object]

    def write(self, ranks: Ranks) -> Path:
        """Write and commit it, and remove old ones. All `ranks` call it; collective calls are made with `ranks` only.

        Raises: CheckpointError if it cannot be written, on all ranks. It is removed then, and earlier checkpoints are
        unchanged.
        """
        with _Removed(self.path, ranks):
            digests = [dict[str, str]() for _ in range(ranks.size)]
            for name, part in self._parts.items():
                write = partial(self._write_part, name, part, ranks)
                of_ranks = ranks.on_all(write, f"{self._name}: {name}")
                for own, added in zip(digests, of_ranks, strict=True):
                    own |= added
            ranks.on_first(lambda: self._complete(digests), f"{self._name}: the manifest")
        keep, protected = self._keep, self._protected
        ranks.on_first(lambda: clean(self.path.parent, keep=keep, protected=protected), f"{self._name}: older ones")
        return self.path

    @property
    def _name(self) -> str:
        return f"checkpoint {self.path.name}"

    def _write_part(self, name: str, part: StagedState, ranks: Ranks) -> dict[str, str]:
        """Write what this rank has to write; return the digests that are known, by path in the checkpoint."""
        digests = {f"{name}/{file}": digest for file, digest in (part.write(self.path / name, ranks) or {}).items()}
        for file in digests:
            if (self.path / file).exists():  # otherwise the manifest names it
                sync(self.path / file)
        return digests

    def _complete(self, digests: Sequence[Mapping[str, str]]) -> None:
        """Write the state of the loop, and then the manifest, when everything is on the disk."""
        self._flush_records()
        with (self.path / LOOP_FILE).open("wb") as file:
            writer = DigestWriter(file)
            writer.write(self._state)
        follow_umask(self.path)
        sync_tree(self.path)
        write_manifest(self.path, self.step, [{**digests[0], LOOP_FILE: writer.digest}, *digests[1:]])
        sync(self.path.parent)


@frozen
class _Removed:
    """A block in which all ranks write the checkpoint at `path`. It is removed if one of them cannot write."""

    path: Path
    ranks: Ranks

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError):
            if self.ranks.is_first:
                shutil.rmtree(self.path, ignore_errors=True)
            raise _not_written(self.path, error) from error


def _not_written(path: Path, error: OSError) -> CheckpointError:
    before = newest_whole(path.parent)
    resumes = f"from {str(before)!r}, which is kept" if before else "from the start, because there is no checkpoint"
    return CheckpointError(
        f"checkpoint {str(path)!r} cannot be written",
        got=str(error),
        need="space on the disk, and permission to write there",
        do=f"free space or fix the permissions; the same command resumes {resumes}",
    )
