"""The run directory.

config.toml          the configuration, after its digest; a started run refuses another configuration
prepared/            files written by `prepare_data`
initial_run/         the run directory of the initial run
data.json            number of steps, number of training rows, number of rows left out, and digests of the data files
tokenizer/           the tokenizer in Hugging Face's format
metrics.jsonl        one line per step; step 0 is before the first update
rollouts/            one Parquet file per step
reward_errors.jsonl  rows on which a reward function failed, and why; only if there are any
checkpoints/         one directory per checkpoint
trackers/            files of trackers
identity             the identity of the run for trackers
final/               the trained policy in Hugging Face's format
summary.json         written last: the run is finished
origin.json          the run and the step that `resume_from` continued; its metrics are part of metrics.jsonl
lock                 held while a process works on the run
"""

from __future__ import annotations

import fcntl
import json
import re
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from attrs import define, field

from purerl.errors import RunDirectoryError
from purerl.files import write_atomically
from purerl.store.lines import read_lines

__all__ = ["RunDirectory", "claim", "is_started_run", "read_origin"]

_CONTENT = (
    "summary.json",
    "checkpoints",
    "origin.json",
    "prepared",
    "initial_run",
    "data.json",
    "tokenizer",
    "metrics.jsonl",
    "rollouts",
    "reward_errors.jsonl",
    "trackers",
    "identity",
    "final",
    "config.toml",
)
"""What a run creates. It is removed in this order: the files that mark it as finished or resumable first."""

Changes = Callable[[Path], Sequence[Any]]


@define
class RunDirectory:
    """A run directory that is locked by this process.

    `changes` are the settings that differ from those with which the run was last started.
    """

    path: Path
    _lock: IO[str] = field(repr=False)
    changes: Sequence[Any] = ()

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def failures(self) -> Path:
        return self.path / "reward_errors.jsonl"

    @property
    def rollouts(self) -> Path:
        return self.path / "rollouts"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer"

    @property
    def final(self) -> Path:
        return self.path / "final"

    @property
    def _data(self) -> Path:
        return self.path / "data.json"

    @property
    def identity(self) -> str:
        """A unique identity, created when it is first used."""
        path = self.path / "identity"
        if not path.exists():
            write_atomically(path, secrets.token_hex(8))
        return path.read_text()

    @property
    def summary(self) -> dict[str, Any] | None:
        """The summary of the finished run; None if it is not finished."""
        path = self.path / "summary.json"
        return json.loads(path.read_text()) if path.exists() else None

    @property
    def origin(self) -> dict[str, Any] | None:
        """The `run` and the `step` of the checkpoint that this run started from; None if it started by itself."""
        return read_origin(self.path)

    @property
    def facts(self) -> dict[str, Any]:
        """What `write_data` wrote; empty if it was not called yet."""
        return json.loads(self._data.read_text()) if self._data.exists() else {}

    def write_origin(self, origin: Mapping[str, Any]) -> None:
        """Record the checkpoint that this run starts from."""
        write_atomically(self.path / "origin.json", json.dumps(origin, indent=2) + "\n")

    def reopen(self, document: str, digest: str) -> None:
        """Mark a finished run as unfinished, because it is continued with the configuration `document`."""
        (self.path / "summary.json").unlink()
        write_atomically(self.path / "config.toml", _content(document, digest))

    def log(self, record: Mapping[str, Any]) -> None:
        """Append a line to the metrics."""
        _append(self.metrics, record)

    def log_failure(self, record: Mapping[str, Any]) -> None:
        """Append a line to the failures of reward functions."""
        _append(self.failures, record)

    def records(self) -> list[dict[str, Any]]:
        """The lines of the metrics, without a last line that is incomplete."""
        return read_lines(self.metrics)

    def rewind(self, step: int) -> None:
        """Remove everything after `step` (-1: everything), because it is about to be done again."""
        for path in (self.metrics, self.failures):
            if path.exists():
                lines = [json.dumps(record) + "\n" for record in read_lines(path) if record["step"] <= step]
                write_atomically(path, "".join(lines)) if lines else path.unlink()
        for path in self.rollouts.glob("*.parquet"):
            if int(path.stem) > step:
                path.unlink()

    def write_data(self, facts: Mapping[str, Any], files: Mapping[str, str]) -> None:
        """Write `facts` about the run's data, and digests of its files."""
        write_atomically(self._data, json.dumps({**facts, "files": files}, indent=2) + "\n")

    def check_data(self, files: Mapping[str, str]) -> None:
        """Refuse data files whose content has changed since the run started; their names may change.

        Raises: RunDirectoryError.
        """
        before = self.facts.get("files", files)
        if list(files.values()) == list(before.values()):
            return
        changed = sorted({path for path, _ in files.items() ^ before.items()})
        raise RunDirectoryError(
            f"the data of the run in {str(self.path)!r} have changed since it started",
            got="other content: " + ", ".join(changed[:5]),
            need="the same files, to resume the run",
            do="restore them, name another directory, or discard the run with --fresh",
        )

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Mark the run as finished."""
        write_atomically(self.path / "summary.json", json.dumps(summary, indent=2) + "\n")

    def release(self) -> None:
        """Unlock the directory."""
        self._lock.close()


def _append(path: Path, record: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def claim(path: Path, document: str, digest: str, *, changes: Changes, fresh: bool) -> RunDirectory:
    """Lock the directory at `path` for a run; with `fresh`, discard the run that it contains.

    document, digest  the configuration as TOML, and its digest
    changes           (path of a stored configuration) -> the settings that differ; it raises for those that may not

    A run that has not started, for example because its data were refused, is replaced by any other run.

    Raises: RunDirectoryError if another process works there, if the directory contains something that is not a run, or
    a started run with another configuration.
    """
    if path.exists() and not path.is_dir():
        raise RunDirectoryError(f"run directory {str(path)!r}", got="a file", need="a directory, or a new path")
    if unknown := _unknown_entries(path):
        got, need = "other files: " + ", ".join(sorted(unknown)[:5]), "a run, or an empty directory"
        raise RunDirectoryError(f"run directory {str(path)!r}", got=got, need=need, do="name another directory")
    path.mkdir(parents=True, exist_ok=True)
    directory = RunDirectory(path, _lock(path))
    try:
        if fresh:
            _remove_run(path)
        content = _content(document, digest)
        stored = (path / "config.toml").read_text(encoding="utf-8") if _is_run(path) else None
        if stored is not None and stored != content and _has_started(path):
            directory.changes = tuple(changes(path / "config.toml"))
        if stored != content and directory.summary is None:
            write_atomically(path / "config.toml", content)
    except BaseException:
        directory.release()
        raise
    return directory


def read_origin(path: Path) -> dict[str, Any] | None:
    """The `run` and the `step` of the checkpoint that the run at `path` started from; None if it started by itself."""
    file = path / "origin.json"
    return json.loads(file.read_text()) if file.exists() else None


def is_started_run(path: Path) -> bool:
    """Whether the directory `path` contains a run, and something beside its configuration has been written."""
    return _is_run(path) and _has_started(path)


def _content(document: str, digest: str) -> str:
    """The content of config.toml."""
    return f"# {digest}\n{document}"


def _unknown_entries(path: Path) -> list[str]:
    """Entries that do not belong to a run. A run that died while starting leaves its lock and unfinished files."""
    if _is_run(path) or not path.exists():
        return []
    return [entry.name for entry in path.iterdir() if entry.name != "lock" and entry.suffix != ".partial"]


def _is_run(path: Path) -> bool:
    """Whether there is a config.toml that starts with a digest; other tools have files with this name too."""
    file = path / "config.toml"
    return file.is_file() and re.match(rb"# [0-9a-f]{64}\n", file.read_bytes()) is not None


def _has_started(path: Path) -> bool:
    """Whether something beside the configuration has been written."""
    return any(entry.name not in ("config.toml", "lock") and entry.suffix != ".partial" for entry in path.iterdir())


def _lock(path: Path) -> IO[str]:
    file = (path / "lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        do = "wait for it, or name another directory"
        raise RunDirectoryError(f"run directory {str(path)!r}", got="another process works on it", do=do) from error
    return file


def _remove_run(path: Path) -> None:
    """Remove what a run creates, and nothing else. After an interruption the run starts from the beginning."""
    for name in _CONTENT:
        entry = path / name
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)
