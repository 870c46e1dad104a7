"""A run, from its configuration to its trained model: open, resume, step, finish."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from attrs import evolve

from purerl.config.check import INITIAL_RUN, check, check_metrics, check_ranks
from purerl.config.paths import resolve_judges, resolve_paths
from purerl.config.requirements import Requirements, schedule_of
from purerl.config.schema import RunConfig
from purerl.config.stored import changes_from, document
from purerl.config.structure import digest, to_dict
from purerl.config.tables import check_same_on_ranks
from purerl.loop.callbacks import NO_CALLBACKS, Callbacks
from purerl.loop.remaining_steps import remaining_steps
from purerl.loop.run import open_run
from purerl.loop.state import Ending
from purerl.loop.summary import Summary, summarize
from purerl.models.processor import copy_processor
from purerl.opening.base_models import pin_recorded
from purerl.opening.fit import check_devices
from purerl.opening.inputs import check_inputs, checked_code, prepare
from purerl.opening.start_checkpoint import (
    StartCheckpoint,
    check_start_checkpoint,
    initialize_from,
    parse_start_checkpoint,
)
from purerl.placement.join import RankContext, join_ranks
from purerl.placement.stacks import serve_stack_requests
from purerl.ranks import Ranks
from purerl.rewards.adapters import RewardFunction
from purerl.rewards.settings import Gate, Reward
from purerl.rewards.sources import named_functions
from purerl.seeds import derive_seed, restored_generators
from purerl.store.directory import RunDirectory, claim, unlocked
from purerl.store.progress import written
from purerl.store.resume import check_can_continue
from purerl.system.files import atomic_directory, translate_os_errors
from purerl.system.garbage import gc_frozen
from purerl.system.peak_memory import peak_memory
from purerl.system.phases import phase
from purerl.system.process import torch_threads

__all__ = ["Summary", "claim_directory", "train"]


def train(
    config: RunConfig,
    *,
    rewards: Sequence[RewardFunction | Reward | Any] = (),
    gates: Sequence[RewardFunction | Gate | Any] = (),
    directory: str | Path | None = None,
    fresh: bool = False,
    resume_from: str | Path | None = None,
    callbacks: Callbacks = NO_CALLBACKS,
    accept_changed_code: bool = False,
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
    accept_changed_code
                    resume a run although code of the user was edited since its newest checkpoint

    Raises: ConfigError and DataError for invalid settings and data, as early as they can be found; RunDirectoryError if
    the directory contains another run, or cannot be written; RewardError, RolloutError, EngineError,
    CheckpointError and RunStoppedError during the run, which can be resumed afterwards.
    """
    named, named_gates, functions = named_functions(rewards, gates)
    config = evolve(config, rewards=named or config.rewards, gates=named_gates or config.gates)
    needs = check(config, functions)
    check_metrics(config, needs, may_log=callbacks.may_log)
    check_devices(config)
    path = Path(directory or Path("runs") / config.name)
    origin = None if resume_from is None else parse_start_checkpoint(resume_from)
    accept = {"accept_changed_code": accept_changed_code}
    if origin is not None:
        check_start_checkpoint(origin, path, config.max_steps, fresh=fresh)
    if fresh or config.initial_run is not None:  # before a run is discarded, or the first of two is done
        check_inputs(config, needs)
    with join_ranks(config.placement, path) as context, translate_os_errors(path):
        check_same_on_ranks(context.ranks.gather(to_dict(config), "the configuration"))
        check_ranks(config.placement, needs, context.ranks.size)
        with (
            _claimed(path, config, context, fresh=fresh) as claimed,
            context.redirected(),
            serve_stack_requests(path, context.ranks.rank if context.ranks.size > 1 else "run"),
        ):
            summary = context.ranks.on_first(lambda: _begin(config, claimed, origin), "beginning the run")
            if summary is None and config.initial_run is not None:
                _train_initial(config, needs[INITIAL_RUN], claimed, callbacks, context, **accept)
            return summary or _finish(config, needs[""], claimed, functions, callbacks, context, **accept)


def claim_directory(path: Path, config: RunConfig, *, fresh: bool = False) -> RunDirectory:
    """Lock the directory at `path` for `config`. A started run may have other settings that `check_changes` allows."""
    return claim(path, document(config), digest(config), changes=partial(changes_from, config), fresh=fresh)


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


def _begin(config: RunConfig, directory: RunDirectory, origin: StartCheckpoint | None) -> Summary | None:
    """The summary, if the run is finished; otherwise prepare what it needs."""
    if directory.summary is not None:
        max_steps = schedule_of(config).num_steps(directory.facts.get("examples", 0))
        ending = Ending(max_steps, config.stop_when, directory.start)
        is_extended = bool(directory.changes) and not any(map(ending.is_over, directory.records()[-1:]))
        if directory.final.is_dir() and not is_extended:
            return Summary(directory.path, **directory.summary, was_finished=True)
        check_can_continue(directory)
        directory.reopen(document(config), digest(config))
    initialize_from(origin, directory, config)
    prepare(config.prepare_data, config.seed, directory.path)
    return None


def _train_initial(
    config: RunConfig,
    needs: Requirements,
    outer: RunDirectory,
    callbacks: Callbacks,
    context: RankContext,
    *,
    accept_changed_code: bool,
) -> None:
    """Do the initial run of `config` in a directory of its own, unless it is finished. Its files are in `outer`."""
    seed = derive_seed(config.seed, "initial_run", config.initial_run.seed)  # changing either one gives another run
    initial = resolve_paths(evolve(config.initial_run, seed=seed), Path("{run}/.."))
    only_stop = evolve(NO_CALLBACKS, should_stop=callbacks.should_stop)
    with _claimed(outer.path / "initial_run", initial, context) as directory:
        if context.ranks.on_first(lambda: directory.summary is None, "the initial run"):
            _finish(initial, needs, directory, {}, only_stop, context, accept_changed_code=accept_changed_code)
            gc.collect()  # its models, before others are loaded


def _finish(
    config: RunConfig,
    needs: Requirements,
    directory: RunDirectory,
    functions: Mapping[str, RewardFunction],
    callbacks: Callbacks,
    context: RankContext,
    *,
    accept_changed_code: bool,
) -> Summary:
    """Do all remaining steps, export the policy, and write the summary.

    Code of the user that was edited since the newest checkpoint is refused, unless it is accepted.
    """
    ranks, threads = context.ranks, torch_threads(context.num_threads(config.num_threads))
    resolved = resolve_judges(resolve_paths(config, directory.path), directory.path)
    code = checked_code(resolved, functions, directory, is_accepted=accept_changed_code)
    with restored_generators(), threads, ExitStack() as stack:
        run = open_run(resolved, directory, functions, context, stack)
        with gc_frozen():
            record = remaining_steps(config, needs, run, directory, context, callbacks, code=code)
            with (
                _common_directory(directory.final, ranks) as folder,
                phase("exporting the model", measure=partial(written, folder)),
            ):
                run.engines.trainers["policy"].export(folder)
                if ranks.is_first:
                    run.task.chat.tokenizer.save_pretrained(folder)
                    copy_processor(pin_recorded(resolved, directory.path).model, folder)
    memory = ranks.gather(peak_memory(), "peak memory")
    return ranks.on_first(lambda: summarize(config.checkpoint, directory, record, memory), "the summary")


@contextmanager
def _common_directory(path: Path, ranks: Ranks) -> Iterator[Path]:
    """A new directory that all ranks fill; it is renamed to `path` when all of them have left the block."""
    with ExitStack() as stack:
        folder = ranks.on_first(lambda: stack.enter_context(atomic_directory(path)), "a new directory")
        yield folder
        ranks.gather(None, "a new directory is complete")
