"""Starting a run from a checkpoint of another run.

The new run directory gets a copy of the checkpoint, the metrics up to its step, and what `prepare_data` and
`initial_run` wrote, if the new run would write the same. `origin.json` is written first and the checkpoint last: if the
process dies in between, the next start copies again.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

from purerl.config.requirements import requirements_of
from purerl.config.schema import RunConfig
from purerl.config.stored import read_config
from purerl.errors import CheckpointError, ConfigError, RunDirectoryError
from purerl.store.best import best_step
from purerl.store.checkpoint import newest, path_of, saved_steps, step_of
from purerl.store.directory import RunDirectory, is_started_run
from purerl.store.lines import read_lines
from purerl.store.manifest import find_damage
from purerl.store.objects import read_origin
from purerl.system.files import atomic_directory, write_atomically
from purerl.system.strict_json import to_json

__all__ = [
    "StartCheckpoint",
    "check_length",
    "check_start_checkpoint",
    "find_checkpoint",
    "initialize_from",
    "parse_start_checkpoint",
]

_NOT_COPIED = (
    *("checkpoints", "rollouts", "evaluations", "trackers", "profile", "stacks.txt", "export", "identity", "lock"),
    "*.partial",
)
"""Files that a copy of an initial run does not need."""


@frozen
class StartCheckpoint:
    """A checkpoint of a run: its directory, and the step, "latest" or "best"."""

    run: Path
    step: str = "latest"


def parse_start_checkpoint(text: str | Path, what: str = "resume_from") -> StartCheckpoint:
    """The checkpoint that `text`, a value of `what`, names: RUN, RUN:STEP, RUN:latest, RUN:best, RUN/checkpoints/STEP.

    >>> parse_start_checkpoint("runs/old:40")
    StartCheckpoint(run=PosixPath('runs/old'), step='40')

    Raises: ConfigError for another step.
    """
    path = Path(text)
    if path.parent.name == "checkpoints" and path.name.isdecimal():
        return StartCheckpoint(path.parent.parent, str(int(path.name)))
    run, colon, step = str(text).rpartition(":")
    if not colon or path.is_dir():
        return StartCheckpoint(path)
    if not step.isdecimal() and step not in ("latest", "best"):
        raise ConfigError(what, got=str(text), need="RUN, RUN:STEP, RUN:latest or RUN:best")
    return StartCheckpoint(Path(run), str(int(step)) if step.isdecimal() else step)


def find_checkpoint(start: StartCheckpoint) -> Path:
    """The directory of the checkpoint `start`.

    Raises: RunDirectoryError if there is no run; CheckpointError if it has no such complete checkpoint; ConfigError for
    "best" if the run does not set `checkpoint.best`.
    """
    config, folder = read_config(start.run), start.run / "checkpoints"
    path = newest(folder) if start.step == "latest" else None
    steps = saved_steps(folder)
    if not steps:
        do = "resume it with purerl train; checkpoint.every is the number of steps between checkpoints"
        got, need = "a run without a checkpoint", "one with a complete checkpoint"
        raise CheckpointError(f"run directory {str(start.run)!r}", got=got, need=need, do=do)
    if path is not None:
        return path
    if start.step == "best" and config.checkpoint.best is None:
        need = "checkpoint.best, the metric that decides which checkpoint is the best"
        raise ConfigError("step best", got=f"a run without checkpoint.best: {str(start.run)!r}", need=need)
    records = read_lines(start.run / "metrics.jsonl")
    step = best_step(records, steps, config.checkpoint) if start.step == "best" else int(start.step)
    if step not in steps:
        got, need = f"no complete checkpoint of step {start.step}", "one of: " + ", ".join(map(str, sorted(steps)))
        raise CheckpointError(f"run {str(start.run)!r}", got=got, need=need)
    path = path_of(folder, step)
    if damage := find_damage(path):
        need, do = "a checkpoint whose files are as they were written", "name another step, or restore it from a copy"
        raise CheckpointError(f"checkpoint {str(path)!r}", got=damage, need=need, do=do)
    return path


def check_start_checkpoint(start: StartCheckpoint, path: Path, max_steps: int | None, *, fresh: bool) -> None:
    """Check that a run of `max_steps` in the directory `path` can start from `start`, or has; nothing is changed.

    Raises: as `find_checkpoint`; RunDirectoryError if the run in the directory started otherwise, and is not to be
    discarded (`fresh`); ConfigError if the run is not longer than the checkpoint.
    """
    if start.run.resolve() == path.resolve():
        do = "name a new directory with --directory; without --resume-from the run itself is resumed"
        raise RunDirectoryError(f"{str(path)!r} cannot start from itself", need="another directory", do=do)
    if fresh or not is_started_run(path):
        check_length(step_of(find_checkpoint(start)), max_steps)
        return
    stored = read_origin(path)
    steps = ("latest", "best", str(stored["step"])) if stored else ()
    if stored is None or stored["run"] != str(start.run.resolve()) or start.step not in steps:
        raise RunDirectoryError(
            f"{str(path)!r} contains a run that did not start from {str(start.run)!r}:{start.step}",
            got=f"it started from {stored['run']!r}:{stored['step']}" if stored else "it started by itself",
            need="a new directory, or a run that started from this checkpoint",
            do="name another directory with --directory, or discard the run with --fresh",
        )


def check_length(step: int, max_steps: int | None) -> None:
    """Raise ConfigError if a run of `max_steps` that starts at `step` has no step to do."""
    if max_steps is not None and max_steps <= step:
        need = f"more than {step}, the step of the checkpoint that the run starts from"
        raise ConfigError("max_steps", got=max_steps, need=need, do="steps are counted from the start of the first run")


def initialize_from(start: StartCheckpoint | None, directory: RunDirectory, config: RunConfig) -> None:
    """Copy the checkpoint `start`, and its past, into `directory`, unless it has been done.

    Raises: CheckpointError if the checkpoint or the metrics of its step do not exist any more.
    """
    if start is not None and directory.origin is None:
        checkpoint = find_checkpoint(start)
        check_length(step_of(checkpoint), config.max_steps)
        advantages = (requirements_of(each).algorithm.advantage for each in (read_config(start.run), config))
        same_advantage = next(advantages) == next(advantages)
        origin_of_run = {"run": str(start.run.resolve()), "step": step_of(checkpoint)}
        directory.write_origin({**origin_of_run, "same_advantage": same_advantage})
    stored = directory.origin
    if stored is not None and not saved_steps(directory.checkpoints):
        _copy(Path(stored["run"]), stored["step"], directory, _reusable(Path(stored["run"]), config))


def _copy(run: Path, step: int, directory: RunDirectory, reusable: Sequence[str]) -> None:
    """Copy the checkpoint of this step of `run`, the metrics up to it, and the directories `reusable`."""
    checkpoint = find_checkpoint(StartCheckpoint(run, str(step)))
    records = [record for record in read_lines(run / "metrics.jsonl") if record["step"] <= step]
    if not records or records[-1]["step"] != step:
        got, need = f"no metrics of step {step}", f"metrics.jsonl with the steps up to {step}"
        raise CheckpointError(f"run {str(run)!r}", got=got, need=need)
    for name in reusable:
        if (run / name).is_dir() and not (directory.path / name).exists():
            _copy_tree(run / name, directory.path / name, ignored=_NOT_COPIED if name == "initial_run" else ())
    write_atomically(directory.metrics, "".join(to_json(record) + "\n" for record in records))
    directory.checkpoints.mkdir(exist_ok=True)
    _copy_tree(checkpoint, directory.checkpoints / checkpoint.name)


def _reusable(run: Path, config: RunConfig) -> list[str]:
    """The directories in `run` that a run of `config` would fill in the same way."""
    stored = read_config(run)
    is_prepared = (stored.prepare_data, stored.seed) == (config.prepare_data, config.seed)
    is_initialized = is_prepared and stored.initial_run == config.initial_run
    is_initialized = is_initialized and (run / "initial_run" / "summary.json").exists()
    return ["prepared"] * is_prepared + ["initial_run"] * is_initialized


def _copy_tree(source: Path, target: Path, *, ignored: Sequence[str] = ()) -> None:
    """Copy the directory `source`, except for the entries at its top level with the names or patterns `ignored`."""
    matches = shutil.ignore_patterns(*ignored)

    def ignore(folder: str, names: list[str]) -> set[str]:
        return matches(folder, names) if Path(folder) == source else set()

    try:
        with atomic_directory(target) as folder:
            shutil.copytree(source, folder, dirs_exist_ok=True, ignore=ignore)
    except (shutil.Error, FileNotFoundError) as error:
        need, do = "files that stay while they are copied", "try again; a run in progress removes old checkpoints"
        raise CheckpointError(f"{str(source)!r} cannot be copied", got=str(error)[:200], need=need, do=do) from error
