"""Checkpoints of a run in progress: resuming from the newest one, writing one, and stopping between two steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import torch
from attrs import asdict, evolve, frozen
from torch import Tensor

from purerl.backends.weights import TensorWeights
from purerl.config.continuing import describe_changes
from purerl.config.schema import RunConfig
from purerl.errors import RunStoppedError
from purerl.loop.open import Run
from purerl.loop.origin import check_length
from purerl.loop.run import Clock, LoopState
from purerl.store.best import best_step
from purerl.store.checkpoint import SupportsSave, clean, commit, restore, saved_steps
from purerl.store.directory import RunDirectory
from purerl.store.resume import checkpoint_to_resume, rewind_to
from purerl.store.settings import Checkpoint

__all__ = ["best_of", "describe_start", "resume", "save_checkpoint", "stop"]

_GENERATOR, _WEIGHTS = "generator", "weights.pt"


@frozen
class _StaleWeights:
    """Weights of the generator that are older than those of the policy. They are saved like a trainer."""

    tensors: Mapping[str, Tensor]

    def save(self, path: Path) -> None:
        with (path / _WEIGHTS).open("wb") as file:
            torch.save(dict(self.tensors), file)


def resume(run: Run, directory: RunDirectory) -> LoopState:
    """Load the newest checkpoint, and remove what was written after it. Without one, the state before the first step.

    A model that the checkpoint does not have keeps its initial weights; this happens only if the run started from a
    checkpoint of another run. The generator gets the weights that it had after this step.

    Raises: CheckpointError if the checkpoint is one of other models; ConfigError if a run that started from another one
    has no step to do.
    """
    config, origin, path = run.config, directory.origin, checkpoint_to_resume(directory)
    initial = LoopState(transform=run.learner.algorithm.advantage.init())
    if path is None:
        rewind_to(None, directory)
        run.load_weights(0, Clock())
        return initial
    trainers = {role: trainer for role, trainer in run.trainers.items() if (path / role).is_dir()}
    state = LoopState(**restore(path, trainers))
    if origin is not None and origin["step"] == state.step:
        check_length(state.step, run.max_steps)
        state = state if origin["same_advantage"] else evolve(state, transform=initial.transform)
    rewind_to(path, directory)
    clean(directory.checkpoints, keep=config.checkpoint.keep, protected=_protected(directory, config.checkpoint))
    stale = path / _GENERATOR / _WEIGHTS
    if run.generator is not None and _is_stale(config) and stale.exists():
        tensors = torch.load(stale, map_location="cpu", weights_only=True)
        run.generator.load_weights(TensorWeights(tensors), version=state.step - 1)
    else:
        run.load_weights(state.step, Clock())
    return state


def describe_start(state: LoopState, directory: RunDirectory) -> str:
    """From which step the run resumes, and which settings have changed; empty for a run that starts."""
    origin = directory.origin
    if origin is not None and origin["step"] == state.step:
        reset = "" if origin["same_advantage"] else "; the state of the advantages starts from its initial value"
        start = f"started from step {state.step} of {origin['run']}{reset}"
    else:
        start = f"resumed from step {state.step}" if state.step else ""
    return "; ".join(filter(None, [start, describe_changes(directory.changes)]))


def save_checkpoint(run: Run, state: LoopState, directory: RunDirectory, *, stale: _StaleWeights | None = None) -> None:
    """Write a checkpoint of `state`, whose metrics have been logged, and remove old ones."""
    settings, content = run.config.checkpoint, asdict(state, recurse=False)
    saved: dict[str, SupportsSave] = {**run.trainers, **({_GENERATOR: stale} if stale else {})}
    directory.sync(range(max(saved_steps(directory.checkpoints), default=0), state.step + 1))
    protected = _protected(directory, settings, state.step)
    commit(directory.checkpoints, state.step, content, saved, keep=settings.keep, protected=protected)


def _protected(directory: RunDirectory, settings: Checkpoint, *steps: int) -> list[int]:
    """The steps of the checkpoints that are not removed: that of the best one, if it is selected."""
    best = best_of(directory, settings, *steps)
    return [] if best is None else [best]


def best_of(directory: RunDirectory, settings: Checkpoint, *steps: int) -> int | None:
    """The step with the best value of the metric ``settings.best``, among checkpoints and `steps`; None if not set."""
    if settings.best is None:
        return None
    return best_step(directory.records(), saved_steps(directory.checkpoints).union(steps), settings)


def stop(run: Run, state: LoopState, directory: RunDirectory, advance: Callable[[], LoopState]) -> NoReturn:
    """Write a checkpoint, unless there is one of this step, and raise RunStoppedError.

    With `rollout.max_staleness` the generator has the weights of the step before, except after a checkpoint or an
    evaluation. Then `advance` does one more step. The weights that the policy has now are those that the generator has
    after it, so they are part of the checkpoint.
    """
    stale = None
    if state.step and state.step not in saved_steps(directory.checkpoints):
        if not _is_refreshed(run.config, state.step):
            weights = run.trainers["policy"].weights()
            stale = _StaleWeights({name: value.detach().to("cpu", copy=True) for name, value in weights})
            state = advance()
        if state.step not in saved_steps(directory.checkpoints):
            stale = None if _is_refreshed(run.config, state.step) else stale
            save_checkpoint(run, state, directory, stale=stale)
    raise RunStoppedError(
        f"{str(directory.path)!r}: stopped after step {state.step}", do="the same command resumes the run"
    )


def _is_stale(config: RunConfig) -> bool:
    return config.rollout is not None and config.rollout.max_staleness > 0


def _is_refreshed(config: RunConfig, step: int) -> bool:
    """Whether the generator has the newest weights after `step`."""
    cadences = [config.checkpoint.every, *([config.evaluate.every] if config.evaluate else [])]
    return not _is_stale(config) or any(step % every == 0 for every in cadences)
