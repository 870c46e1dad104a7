"""Checkpoints of a run in progress: resuming from the newest one, and writing one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from attrs import asdict, evolve, frozen

from purerl.config.continuing import describe_changes
from purerl.errors import EngineError
from purerl.loop.run import Run
from purerl.loop.state import Clock, LoopState
from purerl.loop.window import Contents
from purerl.opening.expert_routes import records_of, route_store
from purerl.opening.start_checkpoint import check_length
from purerl.ranks import Ranks
from purerl.rollouts.types import Group
from purerl.store.background import CheckpointWriter
from purerl.store.best import best_step
from purerl.store.checkpoint import clean, restore, saved_steps
from purerl.store.commit import StagedCheckpoint, stage
from purerl.store.directory import RunDirectory
from purerl.store.groups import read_groups, read_routes, write_groups, write_routes
from purerl.store.resume import checkpoint_to_resume, rewind_to
from purerl.store.settings import Checkpoint

__all__ = ["best_of", "describe_start", "resume", "save_before_stop", "save_checkpoint", "saved_if_sampling_fails"]

_WAITING, _FILE, _ROUTES = "waiting", "groups.parquet", "routes.safetensors"


@frozen
class _WaitingGroups:
    """Groups that have not been trained yet, which every rank has. They are written like the state of a trainer.

    `routes` are the records of the experts of their rows, by number, on rank 0.
    """

    groups: Sequence[Group]
    routes: Mapping[int, np.ndarray]

    def write(self, path: Path, ranks: Ranks) -> dict[str, str]:
        """Write them into `path`, on rank 0."""
        if not ranks.is_first:
            return {}
        routes = {_ROUTES: write_routes(path / _ROUTES, self.routes)} if self.routes else {}
        return {_FILE: write_groups(path / _FILE, self.groups), **routes}


def resume(run: Run, directory: RunDirectory) -> LoopState:
    """Load the newest checkpoint, and remove what was written after it. Without one, the state before the first step.

    A model that the checkpoint does not have keeps its initial weights; this happens only if the run started from a
    checkpoint of another run. Draws that were in flight are sampled again, with the weights after this step.

    Raises: CheckpointError if the checkpoint is one of other models; ConfigError if a run that started from another one
    has no step to do.
    """
    config, ranks = run.config, run.context.ranks
    origin, path = ranks.on_first(lambda: (directory.origin, checkpoint_to_resume(directory)), "choosing a checkpoint")
    initial = LoopState(transform=run.learner.algorithm.advantage.init())
    if path is None:
        ranks.on_first(lambda: rewind_to(None, directory), "removing later records")
        run.load_weights(0, Clock())
        return initial
    trainers = {role: trainer for role, trainer in run.trainers.items() if (path / role).is_dir()}
    state = LoopState(**restore(path, trainers))
    if origin is not None and origin["step"] == state.step:
        check_length(state.step, run.max_steps)
        state = state if origin["same_advantage"] else evolve(state, transform=initial.transform)
    ranks.on_first(lambda: _discard_later(config.checkpoint, directory, path), "removing later records")
    run.load_weights(state.step, Clock())
    waiting = read_groups(path / _WAITING / _FILE) if (path / _WAITING).is_dir() else []
    in_flight = state.in_flight
    if origin is not None and origin["step"] == state.step:  # other data or settings: nothing was sampled with them
        in_flight, waiting = (*(group.draw for group in waiting), *in_flight), []
    store, file = route_store(config, directory), path / _WAITING / _ROUTES
    if store is not None:
        records = read_routes(file) if waiting and file.exists() else {}
        ranks.on_first(lambda: store.replace_all(records), "the experts of waiting groups")
    run.source.window.restore(state.num_draws, in_flight, waiting, step=state.step)
    return state


def _discard_later(settings: Checkpoint, directory: RunDirectory, path: Path) -> None:
    """Remove what was written after the checkpoint at `path`, and old checkpoints."""
    rewind_to(path, directory)
    clean(directory.checkpoints, keep=settings.keep, protected=_protected(directory, settings))


def describe_start(state: LoopState, directory: RunDirectory) -> str:
    """From which step the run resumes, and which settings have changed; empty for a run that starts."""
    origin = directory.origin
    if origin is not None and origin["step"] == state.step:
        reset = "" if origin["same_advantage"] else "; the state of the advantages starts from its initial value"
        start = f"started from step {state.step} of {origin['run']}{reset}"
    else:
        start = f"resumed from step {state.step}" if state.step else ""
    return "; ".join(filter(None, [start, describe_changes(directory.changes)]))


def save_checkpoint(run: Run, state: LoopState, directory: RunDirectory, writer: CheckpointWriter) -> None:
    """Write a checkpoint of `state`, whose metrics have been logged, and remove old ones; `writer` says how.

    If sampling can be repeated exactly, the groups of everything in flight are collected first: then a resumed run is
    equal to one that was not interrupted. All their tokens have been sampled, so this changes no result.
    """
    window, images = run.source.window, run.data.chat.store
    if _is_repeatable(run):
        window.drain()
    if images is not None:
        images.sync()
    writer.write(partial(_stage, run, state, directory, window.contents, in_background=writer.background))


def _stage(
    run: Run, state: LoopState, directory: RunDirectory, contents: Contents, *, in_background: bool
) -> StagedCheckpoint:
    settings, waiting, ranks = run.config.checkpoint, contents.waiting, run.context.ranks
    routes = records_of(waiting if ranks.is_first else (), route_store(run.config, directory))
    unflushed = range(max(saved_steps(directory.checkpoints), default=0), state.step + 1)
    return stage(
        directory.checkpoints,
        state.step,
        asdict(evolve(state, in_flight=contents.in_flight), recurse=False),
        run.trainers,
        {_WAITING: _WaitingGroups(waiting, routes)} if waiting else {},
        keep=settings.keep,
        protected=_protected(directory, settings, state.step),
        flush_records=partial(directory.sync, unflushed),
        ranks=ranks,
        in_background=in_background,
    )


def _is_repeatable(run: Run) -> bool:
    """Whether draws in flight wait only for rewards when a step ends, so that their order and weights are determined.

    This is the case if the engine works inside of the steps of a run, and nothing else takes time while it samples.
    """
    rollout, environment, engine = run.config.rollout, run.config.environment, run.runtime.engine
    if rollout is None or engine is None or rollout.order != "drawn":
        return False
    if environment is not None and not environment.is_in_event_loop:
        return False
    capabilities = engine.generator.capabilities
    return run.runtime.is_in_step and capabilities.seeded and capabilities.batch_invariant


def _protected(directory: RunDirectory, settings: Checkpoint, *steps: int) -> list[int]:
    """The steps of the checkpoints that are not removed: that of the best one, if it is selected."""
    best = best_of(directory, settings, *steps)
    return [] if best is None else [best]


def best_of(directory: RunDirectory, settings: Checkpoint, *steps: int) -> int | None:
    """The step with the best value of the metric ``settings.best``, among checkpoints and `steps`; None if not set."""
    if settings.best is None:
        return None
    return best_step(directory.records(), saved_steps(directory.checkpoints).union(steps), settings)


def save_before_stop(run: Run, state: LoopState, directory: RunDirectory, writer: CheckpointWriter) -> None:
    """Write a checkpoint, unless there is one of this step or it is the first one, and wait until it is complete."""
    writer.wait()
    is_saved = run.context.ranks.on_first(lambda: state.step in saved_steps(directory.checkpoints), "stopping")
    if state.step and not is_saved:
        save_checkpoint(run, state, directory, writer)
        writer.wait()


@contextmanager
def saved_if_sampling_fails(
    run: Run, state: LoopState, directory: RunDirectory, writer: CheckpointWriter
) -> Iterator[None]:
    """Write a checkpoint of `state` if the block, which samples the next step, raises EngineError.

    Everything that was in flight before the block is sampled again. Nothing is written with several ranks, because the
    others do not know of the failure yet.
    """
    contents = run.source.window.contents
    try:
        yield
    except EngineError:
        if run.context.ranks.size == 1 and state.step:
            writer.wait()
            if state.step not in saved_steps(directory.checkpoints):
                writer.write(partial(_stage, run, state, directory, contents, in_background=False))
        raise
