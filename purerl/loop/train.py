"""A run, from its configuration to its trained model: open, resume, step, finish."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from attrs import evolve

from purerl.config.check import check, check_ranks
from purerl.config.continuing import Change, check_changes
from purerl.config.schema import RunConfig
from purerl.config.structure import digest, dumps, read_toml, to_dict
from purerl.config.tables import differences, show
from purerl.errors import CheckpointError, ConfigError
from purerl.loop.callbacks import NO_CALLBACKS, Callbacks
from purerl.loop.devices import check_devices
from purerl.loop.metrics.throughput import measured_by
from purerl.loop.paths import resolve_judges, resolve_paths
from purerl.loop.remaining_steps import is_over, remaining_steps
from purerl.loop.resume import best_of
from purerl.loop.run import check_inputs, max_steps_of, open_run, prepare
from purerl.loop.summary import Summary, evaluation_in
from purerl.models.processor import copy_processor
from purerl.opening.start_checkpoint import Origin, adopt, check_origin, to_origin
from purerl.placement.join import RankContext, join_ranks
from purerl.placement.stacks import with_answers
from purerl.ranks import Ranks
from purerl.rewards.adapters import RewardFunction
from purerl.rewards.settings import Gate, Reward
from purerl.rewards.sources import named_functions
from purerl.seeds import derive_seed, restored_generators
from purerl.store.checkpoint import saved_steps
from purerl.store.directory import RunDirectory, claim, unlocked
from purerl.store.resume import checkpoint_to_resume
from purerl.system.files import atomic_directory, explain_refusals
from purerl.system.peak_memory import peak_memory
from purerl.system.process import gc_frozen, torch_threads

__all__ = ["Summary", "changes_from", "claim_directory", "train"]


def train(
    config: RunConfig,
    *,
    rewards: Sequence[RewardFunction | Reward | Any] = (),
    gates: Sequence[RewardFunction | Gate | Any] = (),
    directory: str | Path | None = None,
    fresh: bool = False,
    resume_from: str | Path | None = None,
    callbacks: Callbacks = NO_CALLBACKS,
) -> Summary:
    """Do the run that `config` describes, or resume it. A finished run is not done again: its summary is returned.

    rewards, gates  replace those of `config`. Functions are called in this process, so a function that hangs cannot be
                    stopped. A `Reward` gives its function a weight, and the Config of a kind stands for this kind
    directory       the run directory; ``runs/<name>`` if not given
    fresh           discard the run in the directory
    resume_from     the run in the directory starts from a checkpoint of another run: RUN, RUN:STEP, RUN:best, or
                    RUN/checkpoints/STEP, where RUN is a run directory
    callbacks       functions that are called between steps. An exception in one of them ends the run, which can be
                    resumed afterwards

    Raises: ConfigError and DataError for invalid settings and data, as early as they can be found; RunDirectoryError if
    the directory contains another run, or cannot be written; RewardError, RolloutError, EngineError,
    CheckpointError and RunStoppedError during the run, which can be resumed afterwards.
    """
    config, functions = _with_functions(config, rewards, gates)
    check(config, functions)
    check_devices(config)
    path = Path(directory or Path("runs") / config.name)
    origin = None if resume_from is None else to_origin(resume_from)
    if origin is not None:
        check_origin(origin, path, config, fresh=fresh)
    if fresh or config.initial_run is not None:  # before a run is discarded, or the first of two is done
        check_inputs(config)
    with join_ranks(config.placement, path) as context, explain_refusals(path):
        _check_same_on_ranks(config, context.ranks)
        check_ranks(config, context.ranks.size)
        return _train(config, path, functions, callbacks, origin, context, fresh=fresh)


def _with_functions(
    config: RunConfig, rewards: Sequence[Any], gates: Sequence[Any]
) -> tuple[RunConfig, dict[str, RewardFunction]]:
    """`config` with the names of functions among `rewards` and `gates`, and the functions by the name of their reward.

    Raises: ConfigError if different functions have the same name.
    """
    named, named_gates, functions = named_functions(rewards, gates)
    return evolve(config, rewards=named or config.rewards, gates=named_gates or config.gates), functions


def _check_same_on_ranks(config: RunConfig, ranks: Ranks) -> None:
    """Raise ConfigError on every rank if the configuration differs between ranks: it names a setting that differs."""
    tables = ranks.gather(to_dict(config), "the configuration")
    different = [(rank, *each) for rank, table in enumerate(tables) for each in differences(tables[0], table)]
    if different:
        rank, key, first, other = different[0]
        raise ConfigError(
            key,
            got=f"{show(first)} on rank 0, {show(other)} on rank {rank}",
            need="the same configuration on every rank",
            do="start every rank with the same command, and let all of them read the same files",
        )


def claim_directory(path: Path, config: RunConfig, *, fresh: bool = False) -> RunDirectory:
    """Lock the directory at `path` for `config`. A started run may have other settings that `check_changes` allows."""
    return claim(path, dumps(config), digest(config), changes=partial(changes_from, config), fresh=fresh)


def changes_from(config: RunConfig, stored: Path) -> list[Change]:
    """The settings in which `config` differs from the file `stored` of a started run; as `check_changes`."""
    return check_changes(stored.parent, read_toml(stored, RunConfig), config)


def _train(
    config: RunConfig,
    path: Path,
    functions: Mapping[str, RewardFunction],
    callbacks: Callbacks,
    origin: Origin | None,
    context: RankContext,
    *,
    fresh: bool,
) -> Summary:
    name = context.ranks.rank if context.ranks.size > 1 else "run"
    claimed = _claimed(path, config, context, fresh=fresh)
    with claimed as directory, context.redirected(), with_answers(path, name):
        summary = context.ranks.on_first(lambda: _begin(config, directory, origin), "beginning the run")
        if summary is not None:
            return summary
        if config.initial_run is not None:
            # Its seed depends on both seeds, so that changing either one gives another run.
            seed = derive_seed(config.seed, "initial_run", config.initial_run.seed)
            _train_initial(evolve(config.initial_run, seed=seed), directory, callbacks, context)
        return _finish(config, directory, functions, callbacks, context)


@contextmanager
def _claimed(path: Path, config: RunConfig, context: RankContext, *, fresh: bool = False) -> Iterator[RunDirectory]:
    """The run directory at `path`, which rank 0 locks: it writes, and the others only read."""
    claimed: list[RunDirectory] = []
    context.ranks.on_first(lambda: claimed.append(claim_directory(path, config, fresh=fresh)), "the run directory")
    directory = claimed[0] if claimed else unlocked(path)
    try:
        yield directory
    finally:
        directory.release()


def _begin(config: RunConfig, directory: RunDirectory, origin: Origin | None) -> Summary | None:
    """The summary, if the run is finished; otherwise prepare what it needs."""
    if directory.summary is not None:
        if _is_finished(config, directory):
            return Summary(directory.path, **directory.summary, was_finished=True)
        _reopen(config, directory)
    adopt(origin, directory, config)
    prepare(config, directory.path)
    return None


def _is_finished(config: RunConfig, directory: RunDirectory) -> bool:
    """Whether the finished run in `directory` has its model, and is finished with `config` too, which may be longer."""
    if not directory.final.is_dir():
        return False
    if not directory.changes:
        return True
    records, max_steps = directory.records(), max_steps_of(config, directory.facts.get("examples", 0))
    return any(is_over(record, max_steps, config.stop_when) for record in records[-1:])


def _reopen(config: RunConfig, directory: RunDirectory) -> None:
    """Mark the finished run in `directory` as unfinished. Raises: CheckpointError if no checkpoint can be used."""
    if not saved_steps(directory.checkpoints):
        raise CheckpointError(
            f"the finished run in {str(directory.path)!r} cannot be continued",
            got=f"no checkpoint in {str(directory.checkpoints)!r}",
            need="its last checkpoint",
            do="restore it from a copy, name another directory, or discard the run with --fresh",
        )
    checkpoint_to_resume(directory)
    directory.reopen(dumps(config), digest(config))


def _train_initial(config: RunConfig, outer: RunDirectory, callbacks: Callbacks, context: RankContext) -> None:
    """Do the initial run in a directory of its own, unless it is finished. Its files are in the `outer` directory."""
    config = resolve_paths(config, Path("{run}/.."))
    with _claimed(outer.path / "initial_run", config, context) as directory:
        if context.ranks.on_first(lambda: directory.summary is None, "the initial run"):
            _finish(config, directory, {}, evolve(NO_CALLBACKS, should_stop=callbacks.should_stop), context)


def _finish(
    config: RunConfig,
    directory: RunDirectory,
    functions: Mapping[str, RewardFunction],
    callbacks: Callbacks,
    context: RankContext,
) -> Summary:
    """Do all remaining steps, export the policy, and write the summary."""
    ranks = context.ranks
    with restored_generators(), torch_threads(context.num_threads(config.num_threads)):
        resolved = resolve_judges(resolve_paths(config, directory.path), directory.path)
        run = open_run(resolved, directory, functions, context)
        with closing(run), gc_frozen():
            record = remaining_steps(config, run, directory, callbacks)
            with _common_directory(directory.final, ranks) as folder:
                run.trainers["policy"].export(folder)
                if ranks.is_first:
                    run.data.chat.tokenizer.save_pretrained(folder)
                    copy_processor(run.config.model, folder)
    memory = ranks.gather(peak_memory(), "peak memory")
    return ranks.on_first(lambda: _summarize(config, directory, record, memory), "the summary")


@contextmanager
def _common_directory(path: Path, ranks: Ranks) -> Iterator[Path]:
    """A new directory that all ranks fill; it is renamed to `path` when all of them have left the block."""
    with ExitStack() as stack:
        folder = ranks.on_first(lambda: stack.enter_context(atomic_directory(path)), "a new directory")
        yield folder
        ranks.gather(None, "a new directory is complete")


def _summarize(
    config: RunConfig, directory: RunDirectory, record: Mapping[str, Any], memory: Sequence[Mapping[str, int]]
) -> Summary:
    """Write the summary of the finished run, whose last record this is. `memory` is the peak memory of each rank."""
    records = directory.records()
    before, after = (evaluation_in(record) for record in (records[0], record))
    best = best_of(directory, config.checkpoint)
    summary = {"steps": record["step"], "before": before, "after": after, "best_step": best}
    summary["measured"] = measured_by(records, memory)
    directory.finish(summary)
    return Summary(directory.path, **summary)
