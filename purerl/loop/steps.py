"""The steps of a run, and what is due after each: an evaluation, records, a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from purerl.algos.algebra import fingerprint
from purerl.config.check import learns_from_rewards
from purerl.config.roles import ModelRole
from purerl.config.schema import RunConfig, StopWhen
from purerl.config.structure import to_dict
from purerl.config.tables import flat
from purerl.data.open import notes
from purerl.debugging.profiler import profiled
from purerl.debugging.settings import Debug
from purerl.debugging.stacks import stacks_after
from purerl.diagnosis.run import Monitor
from purerl.errors import ConfigError, nearest
from purerl.files import atomic_directory
from purerl.loop.callbacks import Callbacks, call_callbacks
from purerl.loop.measure import due, measure, measure_rest
from purerl.loop.metrics import time_metrics
from purerl.loop.open import Run
from purerl.loop.records import is_reached, to_record
from purerl.loop.resume import best_of, describe_start, resume, save_checkpoint, stop
from purerl.loop.run import Clock, LoopState
from purerl.loop.shown import log_completions, log_evaluation, texts_and_rewards
from purerl.loop.step import Step
from purerl.protocols import RunInfo, Tracker, Trainer
from purerl.store.directory import RunDirectory
from purerl.store.rollouts import Metadata, write_rollouts
from purerl.tracking.open import add_trackers, open_console
from purerl.tracking.trackers import Trackers

__all__ = ["advance", "is_over", "remaining_steps"]


def remaining_steps(config: RunConfig, run: Run, directory: RunDirectory, callbacks: Callbacks) -> dict[str, Any]:
    """Do all remaining steps; return the last record. `config` is the configuration with unresolved paths."""
    _write_facts(run, directory)
    identity = directory.identity  # refused, if it is damaged, before anything is removed
    state, title = resume(run, directory), f"{config.algorithm}, {config.model.path}"
    past, note = directory.records()[:-1], [notes(run.data), describe_start(state, directory)]
    note = "\n".join(filter(None, note))
    with run.rewards, open_console(config.name, run.max_steps, title=title, note=note, history=past) as trackers:
        if not directory.records():
            metrics = measure(run, state, due(run.config, 0), Clock())
            directory.log(to_record({"step": 0, **metrics}, directory.path))
        record = directory.records()[-1]
        _add_trackers(trackers, config, directory, identity, [*past, record])
        log_evaluation(trackers, record["step"], directory.evaluations)
        trackers.log(record)
        monitor = Monitor.of_run(directory.path, [*past, record])
        names = {name for record in [*past, record] for name in record}
        _check_metrics(config, names)
        if record["step"] == 0:
            call_callbacks(callbacks, record, directory.checkpoints)
        while not is_over(record, run.max_steps, config.stop_when):
            if callbacks.should_stop():
                stop(run, state, directory, lambda state=state: advance(run, state, directory, trackers)[0])
            with _debugged(config.debug, directory.path, state.step + 1):
                state, record = advance(run, state, directory, trackers)
            for warning in monitor.observe(record):
                trackers.warn(warning.step, warning.name, warning.message)
            call_callbacks(callbacks, record, directory.checkpoints)
            names.update(record)
            _check_metrics(config, names)
    return record


def _write_facts(run: Run, directory: RunDirectory) -> None:
    """Write data.json, and the tokenizer."""
    facts = {"max_steps": run.max_steps, "learns_from_rewards": learns_from_rewards(run.learner.algorithm)}
    directory.write_data({**facts, **run.data.counts}, run.files, run.models)
    if not directory.tokenizer.exists():
        with atomic_directory(directory.tokenizer) as folder:
            run.data.chat.tokenizer.save_pretrained(folder)


def _add_trackers(
    trackers: Trackers,
    config: RunConfig,
    directory: RunDirectory,
    identity: str,
    records: Sequence[Mapping[str, Any]],
) -> None:
    """Add the trackers of `config`. A run that starts from another one has a past that they do not know yet."""
    is_new = directory.origin is not None and directory.origin["step"] == records[-1]["step"]
    history, first = records[:-1] if is_new else [], records[0 if is_new else -1]["step"]
    info = partial(RunInfo, config.name, identity, settings=flat(to_dict(config)), first=first)
    folder, every = directory.path / "trackers", config.checkpoint.every
    add_trackers(trackers, config.trackers, folder=folder, run_info=info, every=every, history=history)


@contextmanager
def _debugged(settings: Debug, folder: Path, step: int) -> Iterator[None]:
    """Record the block, which is `step`, as `settings` say, in files in `folder`."""
    stacks = stacks_after(settings.stack_dump_after, folder / "stacks.txt", step)
    with stacks, profiled(settings, folder / "profile", step):
        yield


def advance(run: Run, state: LoopState, directory: RunDirectory, tracker: Tracker) -> tuple[LoopState, dict[str, Any]]:
    """One step, and what is due after it: new weights, an evaluation, records, a checkpoint."""
    config, clock, number = run.config, Clock(), state.step + 1
    max_staleness = config.rollout.max_staleness if config.rollout else None
    is_saved = number % config.checkpoint.every == 0
    with clock("step"):
        before_update = partial(run.load_weights, state.step, clock) if max_staleness else lambda: None
        step = run.learner.step(state, run.source, clock, before_update=before_update)
        record = to_record({"step": number, **step.metrics}, directory.path)
        is_last = is_over(record, run.max_steps, config.stop_when)
        measured = due(config, number, is_last=is_last)
        _follow_policy(run.trainers, run.roles, number, clock)
        if "evaluate" in measured or is_saved or max_staleness == 0:
            run.load_weights(number, clock)
    record |= to_record(measure(run, step.state, measured, clock), directory.path)
    if is_over(record, run.max_steps, config.stop_when):
        record |= to_record(measure_rest(run, step.state, measured, clock), directory.path)
    directory.check_lock()
    trained = _store(run, state, step, directory, clock)
    record |= time_metrics(clock, record.get("rollout/tokens", trained))
    directory.log(record)
    log_completions(tracker, number, step.trajectories)
    log_evaluation(tracker, number, directory.evaluations)
    tracker.log(record)
    is_saved = is_saved or (bool(measured) and best_of(directory, config.checkpoint, number) == number)
    if is_saved or is_over(record, run.max_steps, config.stop_when):
        save_checkpoint(run, step.state, directory)
    return step.state, record


def _store(run: Run, state: LoopState, step: Step, directory: RunDirectory, clock: Clock) -> int:
    """Write the rollouts of `step`, which began with `state`; return the number of action tokens in its batch."""
    if step.batch is None:
        return 0
    if run.config.rollout is not None:
        with clock("store"):
            metadata = Metadata(fingerprint(run.learner.algorithm), state.transform)
            texts = texts_and_rewards(step.trajectories)
            write_rollouts(directory.rollouts, step.state.step, step.batch, texts, metadata)
    return int(step.batch["action"].sum())


def _follow_policy(trainers: Mapping[str, Trainer], roles: Mapping[str, ModelRole], step: int, clock: Clock) -> None:
    """Update the models that follow the policy and are due after `step`."""
    for name, role in roles.items():
        if role.settings.update_every and step % role.settings.update_every == 0:
            with clock("sync"):
                trainers[name].load_weights(trainers["policy"].weights(), mix=role.settings.update_mix)


def is_over(record: Mapping[str, Any], max_steps: int, stop_when: StopWhen | None) -> bool:
    """Whether the run is over after the step with this record."""
    return record["step"] >= max_steps or is_reached(stop_when, record)


def _check_metrics(config: RunConfig, names: Collection[str]) -> None:
    """Refuse metrics of settings that are not in `names`, those of all records, once they should be.

    The metrics of an evaluation are in the first record with an accuracy, which an evaluation without any reward does
    not have; those of a validation in the first one with its loss; all others in that of the first policy update.
    """
    signs = {"eval": "eval/accuracy", "validation": "validation/loss"}
    metrics = {
        "stop_when.metric": config.stop_when and config.stop_when.metric,
        "checkpoint.best": config.checkpoint.best,
    }
    for key, metric in metrics.items():
        if metric and metric not in names:
            sign = signs.get(metric.partition("/")[0], "policy/loss/")
            if any(name.startswith(sign) for name in names):
                raise ConfigError(key, got=metric, need="a metric of the run", do=nearest(metric, names))
