"""Checkpoints of a run in progress: resuming from the newest one, and writing one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from attrs import asdict, evolve, frozen

from purerl.config.continuing import describe_changes
from purerl.errors import EngineError
from purerl.evaluation.problem_results import is_measurement
from purerl.loop.run import Run
from purerl.loop.state import Clock, LoopState
from purerl.loop.window import Contents
from purerl.opening.expert_routes import records_of
from purerl.opening.start_checkpoint import check_length
from purerl.ranks import Ranks
from purerl.store.background import CheckpointWriter
from purerl.store.best import best_step
from purerl.store.checkpoint import clean, path_of, restore, saved_steps
from purerl.store.code import code_changes
from purerl.store.commit import StagedCheckpoint, stage
from purerl.store.directory import RunDirectory
from purerl.store.groups import WaitingGroups
from purerl.store.progress import checkpoint_progress
from purerl.store.resume import checkpoint_to_resume, rewind_to
from purerl.store.settings import Checkpoint
from purerl.system.phases import phase

__all__ = ["Checkpoints", "best_of", "describe_start", "resume"]

_WAITING = "waiting"
"""The folder of a checkpoint with the groups that wait."""


def resume(run: Run, directory: RunDirectory, settings: Checkpoint, ranks: Ranks, max_steps: int) -> LoopState:
    """Load the newest checkpoint, and remove what was written after it. Without one, the state before the first step.

    A model that the checkpoint does not have keeps its initial weights; this happens only if the run started from a
    checkpoint of another run. Draws that were in flight are sampled again, with the weights after this step.

    Raises: CheckpointError if the checkpoint is one of other models; ConfigError if a run of `max_steps` that started
    from another one has no step to do.
    """
    origin, path = ranks.on_first(lambda: (directory.origin, checkpoint_to_resume(directory)), "choosing a checkpoint")
    initial = LoopState(transform=run.learner.algorithm.advantage.init())
    if path is None:
        ranks.on_first(lambda: rewind_to(None, directory), "removing later records")
        run.engines.load_weights(0, Clock())
        return initial
    trainers = {role: trainer for role, trainer in run.engines.trainers.items() if (path / role).is_dir()}
    with phase(f"loading the checkpoint {path.name}"):
        state = LoopState(**restore(path, trainers))
    start = origin if origin is not None and origin["step"] == state.step else None
    if start is not None:
        check_length(state.step, max_steps)
        state = state if start["same_advantage"] else evolve(state, transform=initial.transform)
    ranks.on_first(lambda: _discard_later(settings, directory, path), "removing later records")
    run.engines.load_weights(state.step, Clock())
    waiting, in_flight, store = WaitingGroups.read(path / _WAITING), state.in_flight, run.source.routes
    if start is not None:  # other data or settings: nothing was sampled with them
        waiting, in_flight = WaitingGroups(), (*(group.draw for group in waiting.groups), *in_flight)
        state = evolve(state, curriculum=())
    if store is not None:
        ranks.on_first(lambda: store.replace_all(waiting.routes), "the experts of waiting groups")
    if run.source.curriculum is not None:
        run.source.curriculum.restore(state.curriculum)
    run.source.window.restore(state.num_draws, in_flight, waiting.groups, step=state.step)
    return state


def _discard_later(settings: Checkpoint, directory: RunDirectory, path: Path) -> None:
    """Remove what was written after the checkpoint at `path`, and old checkpoints."""
    rewind_to(path, directory)
    clean(directory.checkpoints, keep=settings.keep, protected=_protected(directory, settings))


def describe_start(state: LoopState, directory: RunDirectory) -> str:
    """From which step the run resumes, and which settings and code have changed; empty for a run that starts."""
    origin = directory.origin
    if origin is not None and origin["step"] == state.step:
        reset = "" if origin["same_advantage"] else "; the state of the advantages starts from its initial value"
        start = f"started from step {state.step} of {origin['run']}{reset}"
    else:
        start = f"resumed from step {state.step}" if state.step else ""
    code = [f"changed code: {change}" for step, change in code_changes(directory.path) if step == state.step]
    return "; ".join(filter(None, [start, describe_changes(directory.changes), *code]))


@frozen
class Checkpoints:
    """Writes the checkpoints of `run` into `directory`, by `writer`, which says how."""

    run: Run
    directory: RunDirectory
    settings: Checkpoint
    writer: CheckpointWriter
    ranks: Ranks

    def is_due(self, record: Mapping[str, Any], *, is_last: bool) -> bool:
        """Whether there is a checkpoint after the step with this record: at an interval, the best, or the last one."""
        number = record["step"]
        if is_last or number % self.settings.every == 0:
            return True
        steps = (*self.writer.steps_in_flight, number)
        return any(map(is_measurement, record)) and best_of(self.directory, self.settings, *steps) == number

    def save(self, state: LoopState) -> None:
        """Write a checkpoint of `state`, whose metrics have been logged, and remove old ones.

        If sampling can be repeated exactly, the groups of everything in flight are collected first: then a resumed run
        is equal to one that was not interrupted. All their tokens have been sampled, so this changes no result.
        """
        source, images = self.run.source, self.run.task.chat.store
        measure = checkpoint_progress(path_of(self.directory.checkpoints, state.step))
        with phase(f"saving the checkpoint of step {state.step}", measure=measure):
            if source.is_repeatable:
                source.window.drain()
            if images is not None:
                images.sync()
            staged = partial(self._stage, state, source.window.contents, in_background=self.writer.background)
            self.writer.write(staged)

    def _stage(self, state: LoopState, contents: Contents, *, in_background: bool) -> StagedCheckpoint:
        waiting, directory = contents.waiting, self.directory
        routes = records_of(waiting if self.ranks.is_first else (), self.run.source.routes)
        unflushed = range(max(saved_steps(directory.checkpoints), default=0), state.step + 1)
        return stage(
            directory.checkpoints,
            state.step,
            asdict(evolve(state, in_flight=contents.in_flight), recurse=False),
            self.run.engines.trainers,
            {_WAITING: WaitingGroups(waiting, routes)} if waiting else {},
            keep=self.settings.keep,
            protected=_protected(directory, self.settings, state.step),
            flush_records=partial(directory.sync, unflushed),
            ranks=self.ranks,
            in_background=in_background,
        )

    def save_before_stop(self, state: LoopState) -> None:
        """Write a checkpoint, unless there is one of this step or it is the first one; wait until it is complete."""
        self.writer.wait()
        is_saved = self.ranks.on_first(lambda: state.step in saved_steps(self.directory.checkpoints), "stopping")
        if state.step and not is_saved:
            self.save(state)
            self.writer.wait()

    @contextmanager
    def saved_if_sampling_fails(self, state: LoopState) -> Iterator[None]:
        """Write a checkpoint of `state` if the block, which samples the next step, raises EngineError.

        Everything that was in flight before the block is sampled again. Nothing is written with several ranks, because
        the others do not know of the failure yet.
        """
        contents = self.run.source.window.contents
        try:
            yield
        except EngineError:
            if self.ranks.size == 1 and state.step:
                self.writer.wait()
                if state.step not in saved_steps(self.directory.checkpoints):
                    self.writer.write(partial(self._stage, state, contents, in_background=False))
            raise


def _protected(directory: RunDirectory, settings: Checkpoint, *steps: int) -> list[int]:
    """The steps of the checkpoints that are not removed: that of the best one, if it is selected."""
    best = best_of(directory, settings, *steps)
    return [] if best is None else [best]


def best_of(directory: RunDirectory, settings: Checkpoint, *steps: int) -> int | None:
    """The step with the best value of the metric ``settings.best``, among checkpoints and `steps`; None if not set."""
    if settings.best is None:
        return None
    return best_step(directory.records(), saved_steps(directory.checkpoints).union(steps), settings)
