"""The run directory.

config.toml          the configuration, after its digest and the name of its preset; a started run refuses another one
prepared/            files written by `prepare_data`
initial_run/         the run directory of the initial run
data.json            number of steps, name of the preset, whether the algorithm reads rewards, when a completion is
                     correct, number of training rows, number of rows left out, digests of the data files, and
                     fingerprints of the models that the run started from
code.json            digests of the files of the user's code, and the steps that were done with them
processes.jsonl      the processes that worked on the run: commit, versions, computer, CPU seconds before the first step
tokenizer/           the tokenizer in Hugging Face's format
metrics.jsonl        one line per step; step 0 is before the first update
images/              the images of rows, by their content ids; only if there are any
rollouts/            one Parquet file per step
evaluations/         one Parquet file per evaluation
failures.jsonl       samples that are missing because something failed, and why; only if there are any
checkpoints/         one directory per checkpoint
trackers/            files of trackers
profile/             profiles of the steps in debug.profile_steps
stacks.txt           stacks of threads in steps that took longer than debug.stack_dump_after
ranks/               the log of each rank but 0, and failed.txt, why the run has failed; only with several ranks
identity             the identity of the run for trackers
precomputed/         outputs of models that were computed before the first step
final/               the trained policy in Hugging Face's format
summary.json         written last: the run is finished
origin.json          the run and the step of the checkpoint that the run started from, if `resume_from` is given
private/             the secret of ranks that torchrun or srun has started, which only their user can read
export/              models that `purerl export` wrote; they are not removed with the run
lock                 held while a process works on the run
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from attrs import define, field, frozen

from purerl.errors import InputError, RunDirectoryError
from purerl.store.lines import read_lines
from purerl.store.lock import check_lock_file, is_lock_of, lock_directory
from purerl.store.objects import DATA_DO, damaged, read_facts, read_origin, read_summary
from purerl.store.records import sync_records
from purerl.store.step_files import step_path, stored_steps
from purerl.system.files import remove, write_atomically
from purerl.system.strict_json import to_json

__all__ = ["CONTENT", "RunDirectory", "check_directory", "claim", "is_started_run", "unlocked"]

CONTENT = (
    "summary.json", "checkpoints", "origin.json", "prepared", "initial_run", "data.json", "code.json",
    "processes.jsonl", "tokenizer", "metrics.jsonl", "images", "precomputed", "routes", "rollouts", "evaluations",
    "failures.jsonl", "trackers", "profile", "stacks.txt", "ranks", "identity", "final", "config.toml",
)  # fmt: skip
"""The files that a run creates, in the order of their removal: those that mark it as finished or resumable first."""

_BEFORE = ("lock", "private")
"""Entries that are there before the configuration is written, and that stay if the run is discarded."""

Changes = Callable[[Path], Sequence[Any]]


@frozen
class _Entry:
    """The path of the entry `name` of a run directory, as an attribute."""

    name: str

    def __get__(self, directory: RunDirectory, owner: object = None) -> Path:
        return directory.path / self.name


@define
class RunDirectory:
    """A run directory. The process that has locked it writes; in any other process methods that append do nothing.

    `changes` are the settings that differ from those with which the run was last started.
    """

    path: Path
    _lock: IO[str] | None = field(repr=False)
    changes: Sequence[Any] = ()

    @property
    def is_owner(self) -> bool:
        """Whether this process has locked the directory, and writes."""
        return self._lock is not None

    metrics = _Entry("metrics.jsonl")
    failures = _Entry("failures.jsonl")
    images = _Entry("images")
    routes = _Entry("routes")
    rollouts = _Entry("rollouts")
    evaluations = _Entry("evaluations")
    checkpoints = _Entry("checkpoints")
    tokenizer = _Entry("tokenizer")
    final = _Entry("final")
    _data = _Entry("data.json")

    @property
    def identity(self) -> str:
        """A unique identity, created when it is first used. Raises RunDirectoryError if its file is damaged."""
        path = self.path / "identity"
        if not path.exists():
            write_atomically(path, secrets.token_hex(8))
        text = path.read_text(errors="replace")
        if re.fullmatch("[0-9a-zA-Z]+", text) is None:
            do = "restore it, or remove it: trackers then record the rest of the run as another run"
            raise damaged(path, text, "letters and digits", do)
        return text

    @property
    def summary(self) -> dict[str, Any] | None:
        """The summary of the finished run; None if it is not finished. Raises RunDirectoryError if it is damaged."""
        return read_summary(self.path)

    def check_lock(self) -> None:
        """Raise RunDirectoryError if the directory was deleted, moved or replaced since this process has locked it."""
        if self._lock is not None and not is_lock_of(self.path, self._lock):
            raise RunDirectoryError(
                f"run directory {str(self.path)!r}",
                got="its file lock was deleted or replaced: the directory was removed, or another process works on it",
                need="the directory for this process alone, until the run ends",
                do="do not delete the directory or its lock during a run; the same command resumes what is there",
            )

    @property
    def origin(self) -> dict[str, Any] | None:
        """The `run` and the `step` of the checkpoint that this run started from; None if it started by itself."""
        return read_origin(self.path)

    @property
    def start(self) -> int | None:
        """The step of that checkpoint."""
        origin = self.origin
        return None if origin is None else origin["step"]

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that `write_data` wrote; empty if it was not called yet."""
        return read_facts(self.path)

    def write_origin(self, origin: Mapping[str, Any]) -> None:
        """Record the checkpoint that this run starts from."""
        write_atomically(self.path / "origin.json", to_json(origin, indent=2) + "\n")

    def reopen(self, document: str, digest: str) -> None:
        """Mark a finished run as unfinished, because it is continued with the configuration `document`."""
        (self.path / "summary.json").unlink()
        write_atomically(self.path / "config.toml", _content(document, digest))

    def log(self, record: Mapping[str, Any]) -> None:
        """Append a line to the metrics, which have the line of the step before. Raises RunDirectoryError."""
        if self._lock is None:
            return
        if record["step"] > 0 and not self.metrics.is_file():
            do = "restore it, and start the run again to resume it, or discard the run with --fresh"
            raise RunDirectoryError(f"{str(self.metrics)!r} was deleted during the run", do=do)
        _append(self.metrics, record)

    def sync(self, steps: Sequence[int]) -> None:
        """Flush the metrics, the failures of reward functions, and all completions of `steps` to the disk."""
        sync_records(self.path, (self.metrics, self.failures), (self.rollouts, self.evaluations), steps)

    def log_failure(self, record: Mapping[str, Any]) -> None:
        """Append a line to the failures of reward functions."""
        if self._lock is not None:
            _append(self.failures, record)

    def records(self) -> list[dict[str, Any]]:
        """The lines of the metrics, without a last line that is incomplete."""
        return read_lines(self.metrics)

    def rewind(self, step: int) -> None:
        """Remove everything after `step` (-1: everything), because it is about to be done again."""
        for path in (self.metrics, self.failures):
            if path.exists():
                lines = [to_json(record) + "\n" for record in read_lines(path) if record["step"] <= step]
                write_atomically(path, "".join(lines)) if lines else path.unlink()
        for folder in (self.rollouts, self.evaluations):
            for later in filter(step.__lt__, stored_steps(folder)):
                step_path(folder, later).unlink()

    @property
    def models(self) -> Mapping[str, Any]:
        """The fingerprints of the models that the run started from, by role; empty if it has not started."""
        return self._recorded("models", {}, dict)

    def write_data(self, facts: Mapping[str, Any], files: Mapping[str, str], models: Mapping[str, Any]) -> None:
        """Write `facts` about the run's data, digests of its files, and fingerprints of its models by role."""
        content = {**facts, "files": files, "models": models}
        write_atomically(self._data, to_json(content, indent=2) + "\n")

    def check_data(self, files: Mapping[str, str]) -> None:
        """Refuse data files whose content has changed since the run started; their names may change.

        Raises: RunDirectoryError.
        """
        before = self._recorded("files", files, str)
        if list(files.values()) == list(before.values()):
            return
        changed = sorted({path for path, _ in files.items() ^ before.items()})
        raise RunDirectoryError(
            f"the data of the run in {str(self.path)!r} have changed since it started",
            got="other content: " + ", ".join(changed[:5]),
            need="the same files, to resume the run",
            do="restore them, name another directory, or discard the run with --fresh",
        )

    def _recorded(self, name: str, default: Mapping[str, Any], kind: type) -> Mapping[str, Any]:
        """A table of data.json, with values of the type `kind`; `default` if it was not written."""
        stored = self.facts.get(name, default)
        if not isinstance(stored, Mapping) or not all(isinstance(value, kind) for value in stored.values()):
            raise damaged(self._data, str(stored), "digests of the data files, and fingerprints of the models", DATA_DO)
        return stored

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Mark the run as finished."""
        write_atomically(self.path / "summary.json", to_json(summary, indent=2) + "\n")

    def release(self) -> None:
        """Unlock the directory."""
        if self._lock is not None:
            self._lock.close()


def _append(path: Path, record: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(to_json(record) + "\n")


def claim(path: Path, document: str, digest: str, *, changes: Changes, fresh: bool) -> RunDirectory:
    """Lock the directory at `path` for a run; with `fresh`, discard the run that it contains.

    document, digest  the configuration as TOML, and its digest
    changes           (path of a stored configuration) -> the settings that differ; it raises for those that may not

    A run that has not started, for example because its data were refused, is replaced by any other run.

    Raises: RunDirectoryError if another process works there, if the directory contains something that is not a run, a
    started run with another configuration, or a link in which a run removes files.
    """
    _check_entries(path)
    path.mkdir(parents=True, exist_ok=True)
    directory = RunDirectory(path, lock_directory(path))
    try:
        if fresh:
            for name in CONTENT:  # nothing else; after an interruption the run starts from the beginning
                remove(path / name)
        _check_folders(path)
        content = _content(document, digest)
        stored, directory.changes = _check_stored(path, content, changes)
        if stored != content and directory.summary is None:
            write_atomically(path / "config.toml", content)
    except BaseException:
        directory.release()
        raise
    return directory


def unlocked(path: Path) -> RunDirectory:
    """The run directory at `path`, only to be read: it is not locked."""
    return RunDirectory(path, None)


def check_directory(path: Path, document: str, digest: str, *, changes: Changes, fresh: bool) -> None:
    """Refuse what `claim` with these arguments would refuse. Nothing is created or locked."""
    _check_entries(path)
    check_lock_file(path)
    _check_folders(path)
    if path.exists() and not fresh:
        _check_stored(path, _content(document, digest), changes)
    existing = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        need = "a directory, and permission to write there"
        raise RunDirectoryError(f"run directory {str(path)!r} cannot be written", got=str(existing), need=need)


def is_started_run(path: Path) -> bool:
    """Whether the directory `path` contains a run, and something beside its configuration has been written."""
    return _is_run(path) and _has_started(path)


def _content(document: str, digest: str) -> str:
    """The content of config.toml."""
    return f"# {digest}\n{document}"


def _check_entries(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise RunDirectoryError(f"run directory {str(path)!r}", got="a file", need="a directory, or a new path")
    if unknown := _unknown_entries(path):
        got, need = "other files: " + ", ".join(sorted(unknown)[:5]), "a run, or an empty directory"
        has_run = {"metrics.jsonl", "checkpoints"}.intersection(unknown)
        do = "restore its config.toml, or name another directory" if has_run else "name another directory"
        raise RunDirectoryError(f"run directory {str(path)!r}", got=got, need=need, do=do)


def _check_stored(path: Path, content: str, changes: Changes) -> tuple[str | None, tuple[Any, ...]]:
    """The stored configuration, if there is one, and the `changes` from it of a run that has started."""
    file = path / "config.toml"
    stored = file.read_text(encoding="utf-8") if _is_run(path) else None
    if stored is None or stored == content or not _has_started(path):
        return stored, ()
    try:
        return stored, tuple(changes(file))
    except InputError as error:
        do = "restore it, name another directory, or discard the run with --fresh"
        raise RunDirectoryError(f"{str(file)!r} is damaged", got=error, need="a configuration", do=do) from error


def _unknown_entries(path: Path) -> list[str]:
    """Entries that do not belong to a run. A run that died while starting leaves its lock and unfinished files."""
    if _is_run(path) or not path.exists():
        return []
    return [entry.name for entry in path.iterdir() if entry.name not in _BEFORE and entry.suffix != ".partial"]


def _is_run(path: Path) -> bool:
    """Whether there is a config.toml that starts with a digest; other tools have files with this name too."""
    file = path / "config.toml"
    return file.is_file() and re.match(rb"# [0-9a-f]{64}\n", file.read_bytes()) is not None


def _has_started(path: Path) -> bool:
    """Whether something beside the configuration has been written."""
    before = {"config.toml", *_BEFORE}
    return any(entry.name not in before and entry.suffix != ".partial" for entry in path.iterdir())


def _check_folders(directory: Path) -> None:
    """Refuse links in whose targets a run would remove its old files: they may belong to something else."""
    for path in (directory / name for name in ("checkpoints", "rollouts", "evaluations")):
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise RunDirectoryError(
                f"{str(path)!r}",
                got="a link" if path.is_symlink() else "a file",
                need="a directory of the run, because a run removes old files there",
                do="replace it by a directory; the whole run directory may be in another place, or be a link",
            )
