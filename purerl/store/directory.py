"""The run directory.

config.toml       the resolved configuration, under its hash; once there is more, a run of another one is refused
prepared/         what the recipe's `prepare` wrote
initial_run/      the run that came first, in a run directory of its own
data.json         how many rows there are to learn from, and how many were left out; what its files held, as digests
tokenizer/        the tokenizer in Hugging Face's format: what turns the rollouts' tokens into text
metrics.jsonl     one line for each step, step 0 before the first update
rollouts/         one Parquet file for each step
reward_errors.jsonl   rows that a reward function failed on, and why; not there if none did
checkpoints/      one folder for each, committed by the manifest in it
trackers/         what trackers keep here, a folder each
identity          what trackers know the run by
final/            the trained policy in Hugging Face's format
summary.json      written last: the run is finished
lock              held while a process works here
"""

from __future__ import annotations

import fcntl
import json
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from attrs import define, evolve, field

from purerl.config.schema import RunConfig
from purerl.config.structure import differences, digest, dumps, read_toml
from purerl.errors import RunDirectoryError
from purerl.files import write_at_once
from purerl.store.lines import read_lines

__all__ = ["RunDirectory", "claim"]


_MADE = (
    "summary.json",
    "checkpoints",
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
"""What a run makes: first what makes it look finished or resumable, last what makes it a run."""


@define
class RunDirectory:
    """A run directory that this process holds."""

    path: Path
    _lock: IO[str] = field(repr=False)

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
        """What no other run is known by; the run's own from when it is first asked for."""
        path = self.path / "identity"
        if not path.exists():
            write_at_once(path, secrets.token_hex(8))
        return path.read_text()

    @property
    def summary(self) -> dict[str, Any] | None:
        """What the finished run came to; None while it is not finished."""
        path = self.path / "summary.json"
        return json.loads(path.read_text()) if path.exists() else None

    def log(self, record: Mapping[str, Any]) -> None:
        """Add a line to the metrics."""
        _add_line(self.metrics, record)

    def log_failure(self, record: Mapping[str, Any]) -> None:
        """Add a line to the failures of reward functions."""
        _add_line(self.failures, record)

    def records(self) -> list[dict[str, Any]]:
        """The lines of the metrics; one that a kill cut short is left out."""
        return read_lines(self.metrics)

    def rewind(self, step: int) -> None:
        """Forget everything after `step` (-1: everything), which is about to be done again."""
        for path in (self.metrics, self.failures):
            if path.exists():
                kept = [record for record in read_lines(path) if record["step"] <= step]
                write_at_once(path, "".join(json.dumps(record) + "\n" for record in kept))
        for path in self.rollouts.glob("*.parquet"):
            if int(path.stem) > step:
                path.unlink()

    def note_data(self, counts: Mapping[str, int], files: Mapping[str, str]) -> None:
        """Write down how many rows the run learns from, and how many it leaves out; and digests of its files."""
        write_at_once(self._data, json.dumps({**counts, "files": files}, indent=2) + "\n")

    def check_data(self, files: Mapping[str, str]) -> None:
        """Refuse files that do not hold what they held when the run began.

        What they are called is the configuration's business. Raises: RunDirectoryError.
        """
        there = json.loads(self._data.read_text()).get("files", files) if self._data.exists() else files
        if list(files.values()) == list(there.values()):
            return
        raise RunDirectoryError(
            f"the data of the run in {str(self.path)!r} have changed since it began",
            got="other contents: " + ", ".join(sorted({path for path, _ in files.items() ^ there.items()})[:5]),
            need="the same files, for a run that goes on",
            do="put them back as they were, name another directory, or throw the run away with --fresh",
        )

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Mark the run as finished."""
        write_at_once(self.path / "summary.json", json.dumps(summary, indent=2) + "\n")

    def release(self) -> None:
        """Let another process have it."""
        self._lock.close()


def _add_line(path: Path, record: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def claim(path: Path, config: RunConfig, *, fresh: bool) -> RunDirectory:
    """Take the directory at `path` for a run of `config`; with `fresh`, throw away the run that it holds.

    A run that had not begun, since its data were refused say, gives way to any other. One that had takes no other
    configuration but what differs in its trackers: they change nothing that is learned.

    Raises: RunDirectoryError where another process works there, where it holds something that is not a run, or a run
    of another configuration.
    """
    if path.exists() and not path.is_dir():
        raise RunDirectoryError(f"run directory {str(path)!r}", got="a file", need="a directory, or nothing yet")
    if strangers := _strangers(path):
        got = "other files: " + ", ".join(sorted(strangers)[:5])
        raise RunDirectoryError(
            f"run directory {str(path)!r}", got=got, need="a run, or an empty directory", do="name another directory"
        )
    path.mkdir(parents=True, exist_ok=True)
    directory = RunDirectory(path, _lock(path))
    try:
        if fresh:
            _empty(path)
        there = read_toml(path / "config.toml", RunConfig) if _is_run(path) else None
        if there is not None and there != config:
            _check_alike(path, there, config)
        if there != config and directory.summary is None:
            write_at_once(path / "config.toml", f"# {digest(config)}\n{dumps(config)}")
    except BaseException:
        directory.release()
        raise
    return directory


def _strangers(path: Path) -> list[str]:
    """What lies at `path` and is no run's; a run that died as it began leaves only its lock and unfinished files."""
    if _is_run(path) or not path.exists():
        return []
    return [entry.name for entry in path.iterdir() if entry.name != "lock" and entry.suffix != ".partial"]


def _is_run(path: Path) -> bool:
    """Whether a run's configuration is there. Others have files of that name too: ours begins with its hash."""
    file = path / "config.toml"
    return file.is_file() and re.match(rb"# [0-9a-f]{64}\n", file.read_bytes()) is not None


def _has_begun(path: Path) -> bool:
    """Whether more is there than the configuration: something was made as it says."""
    return any(entry.name not in ("config.toml", "lock") and entry.suffix != ".partial" for entry in path.iterdir())


def _lock(path: Path) -> IO[str]:
    file = (path / "lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        do = "wait for it, or name another directory"
        raise RunDirectoryError(f"run directory {str(path)!r}", got="another process works in it", do=do) from error
    return file


def _empty(path: Path) -> None:
    """Remove the run: nothing that has another name than what a run makes.

    A removal that was killed halfway leaves a run that starts from its beginning.
    """
    for name in _MADE:
        entry = path / name
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)


def _check_alike(path: Path, there: RunConfig, config: RunConfig) -> None:
    changed = differences(_untracked(there), _untracked(config))
    if changed and _has_begun(path):
        got = "; ".join(f"{key}: {before!r} there, {now!r} now" for key, before, now in changed)
        need = "the same settings; only trackers may differ"
        do = "start it with the same settings, name another directory, or throw it away with --fresh"
        raise RunDirectoryError(f"{str(path)!r} holds a run of another configuration", got=got, need=need, do=do)


def _untracked(config: RunConfig) -> RunConfig:
    """`config` as if nobody were told of the run."""
    return evolve(config, trackers=(), initial_run=config.initial_run and _untracked(config.initial_run))
