"""The steps of a run, and what is due after each: an evaluation, records, a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from purerl.backends.mismatch_growth import mismatch_limit
from purerl.config.check import accuracy_rewards_of, learns_from_rewards
from purerl.config.generators import is_narrow
from purerl.config.roles import ModelRole
from purerl.config.schema import RunConfig, StopWhen
from purerl.config.structure import to_dict
from purerl.config.tables import flat
from purerl.data.open import notes
from purerl.errors import ConfigError, EngineError, RunStoppedError, nearest
from purerl.evaluation.accuracy import describe_accuracy
from purerl.evaluation.problem_results import is_measurement
from purerl.loop.callbacks import NO_CALLBACKS, Callbacks, call_callbacks
from purerl.loop.measure import due, measure, measure_rest
from purerl.loop.record import StepLog
from purerl.loop.records import is_reached, to_record
from purerl.loop.resume import (
    best_of,
    describe_start,
    resume,
    save_before_stop,
    save_checkpoint,
    saved_if_sampling_fails,
)
from purerl.loop.run import Run
from purerl.loop.shown import log_evaluation
from purerl.loop.state import Clock, LoopState
from purerl.models.processor import copy_processor
from purerl.monitoring.debugging.profiler import profiled
from purerl.monitoring.debugging.settings import Debug
from purerl.monitoring.debugging.stacks import stacks_after
from purerl.monitoring.trackers.open import add_trackers, open_console
from purerl.monitoring.trackers.protocol import RunInfo
from purerl.monitoring.trackers.trackers import Trackers
from purerl.monitoring.warnings.checks import mismatch_growth
from purerl.monitoring.warnings.run import Monitor
from purerl.opening.expert_routes import drop_trained, route_store
from purerl.opening.model_notes import model_notes
from purerl.protocols import Trainer
from purerl.rollouts.types import Trajectory
from purerl.store.background import CheckpointWriter
from purerl.store.directory import RunDirectory
from purerl.system.files import atomic_directory

__all__ = ["advance", "is_over", "remaining_steps"]


def remaining_steps(config: RunConfig, run: Run, directory: RunDirectory, callbacks: Callbacks) -> dict[str, Any]:
    """Do all remaining steps; return the last record. `config` is the configuration with unresolved paths."""
    ranks = run.context.ranks
    identity = ranks.on_first(lambda: _write_facts(run, directory), "the facts of the run")
    state = resume(run, directory)
    records = ranks.on_first(directory.records, "the records of the run")
    past = records[:-1]
    with (
        run.rewards,
        CheckpointWriter(ranks, background=config.checkpoint.background) as writer,
        _open_console(config, run, state, directory, past) as trackers,
        run.context.leaving_noticed(),
    ):
        run.rewards.start(run.runtime.run_here)
        if not records:
            metrics = measure(run, state, due(run.config, 0), Clock())
            records = [to_record({"step": 0, **metrics}, directory.path)]
            directory.log(records[0])
        record = records[-1]
        if directory.is_owner:
            _add_trackers(trackers, config, directory, identity, records)
        log_evaluation(trackers, record["step"], directory.evaluations)
        trackers.log(record)
        monitor = Monitor.of_run(directory.path, [*past, record])
        algorithm = run.learner.algorithm if config.rollout else None
        log = StepLog(directory, trackers, monitor, algorithm, run.learner.throughput)
        names = {name for record in [*past, record] for name in record}
        _check_metrics(config, names)
        call = partial(call_callbacks, callbacks if directory.is_owner else NO_CALLBACKS)
        if record["step"] == 0:
            call(record, [])
        while not is_over(record, run.max_steps, config.stop_when):
            if any(ranks.gather(callbacks.should_stop() or writer.has_failed, "whether to stop")):
                save_before_stop(run, state, directory, writer)
                call(None, writer.take_written())
                raise _stopped(directory, state)
            with _debugged(config.debug, directory, state.step + 1):
                state, record = advance(run, state, log, writer)
            call(record, writer.take_written())
            names.update(record)
            _check_metrics(config, names)
        writer.wait()
        call(None, writer.take_written())
    return record


def _stopped(directory: RunDirectory, state: LoopState) -> RunStoppedError:
    return RunStoppedError(
        f"{str(directory.path)!r}: stopped after step {state.step}", do="the same command resumes the run"
    )


def _open_console(
    config: RunConfig, run: Run, state: LoopState, directory: RunDirectory, past: Sequence[Mapping[str, Any]]
) -> Trackers:
    """The console; on a rank without the run directory nothing."""
    if not directory.is_owner:
        return Trackers()
    accuracy = describe_accuracy(accuracy_rewards_of(config))
    models = model_notes(run.roles, {name: trainer.capabilities for name, trainer in run.trainers.items()})
    lines = [notes(run.data), *models, describe_start(state, directory), accuracy and f"accuracy: {accuracy}"]
    note = "\n".join(filter(None, lines))
    title = f"{config.algorithm}, {config.model.path}"
    return open_console(config.name, run.max_steps, title=title, note=note, history=past)


def _write_facts(run: Run, directory: RunDirectory) -> str:
    """Write data.json, and the tokenizer; return the identity, which is refused, if damaged, here."""
    facts = {
        "max_steps": run.max_steps,
        "learns_from_rewards": learns_from_rewards(run.learner.algorithm),
        "accuracy": describe_accuracy(accuracy_rewards_of(run.config)),
        "mismatch_level": run.mismatch_level,
        "mismatch_limit": _mismatch_limit(run),
    }
    directory.write_data({**facts, **run.data.counts}, run.files, run.models)
    if not directory.tokenizer.exists():
        with atomic_directory(directory.tokenizer) as folder:
            run.data.chat.tokenizer.save_pretrained(folder)
            copy_processor(run.config.model, folder)
    return directory.identity


def _mismatch_limit(run: Run) -> float | None:
    """The difference of log-probabilities, in nats, above which the mismatch has grown; None if it was not measured."""
    if run.generator is None or run.mismatch_level is None:
        return None
    growth = getattr(run.config.generator, "max_mismatch_growth", None)
    narrow = is_narrow(run.config)
    return mismatch_limit(run.mismatch_level, growth, run.generator.capabilities, is_narrow=narrow)


def _check_growth(run: Run, log: StepLog) -> None:
    """Raise EngineError if the mismatch has grown more than `generator.max_mismatch_growth`."""
    text = mismatch_growth(log.monitor.history)
    if text is not None and getattr(run.config.generator, "max_mismatch_growth", None) is not None:
        need = f"at most {_mismatch_limit(run):.2g} nats, by generator.max_mismatch_growth"
        do = "look for warnings in the log of the engine, or raise the limit; the same command resumes the run"
        raise EngineError(text, need=need, do=do)


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
def _debugged(settings: Debug, directory: RunDirectory, step: int) -> Iterator[None]:
    """Record the block, which is `step`, as `settings` say, in files of the run; of several ranks only rank 0."""
    folder = directory.path
    if not directory.is_owner:
        yield
        return
    stacks = stacks_after(settings.stack_dump_after, folder / "stacks.txt", step)
    with stacks, profiled(settings, folder / "profile", step):
        yield


def advance(run: Run, state: LoopState, log: StepLog, writer: CheckpointWriter) -> tuple[LoopState, dict[str, Any]]:
    """One step, and what is due after it: new weights, an evaluation, records, a checkpoint."""
    clock, number, ranks = Clock(), state.step + 1, run.context.ranks
    with clock("step"), run.measured_generation(clock):
        step = run.learner.step(state, partial(_rows, run, log.directory, writer), clock)
        if ranks.is_first:
            drop_trained(run.source.window.waiting, route_store(run.config, log.directory))
        _follow_policy(run.trainers, run.roles, number, clock)
        run.load_weights(number, clock)
    record = log.record(number, ranks.on_first(lambda: step.metrics, "the metrics of a step"))
    record |= log.record(number, _measured(run, step.state, record, clock))

    def write() -> tuple[dict[str, Any], bool]:
        written = log.write(state, step, record, clock)
        _check_growth(run, log)
        return written, _is_saved(run, written, log.directory, writer)

    record, is_saved = ranks.on_first(write, "the record of a step")
    if is_saved:
        save_checkpoint(run, step.state, log.directory, writer)
    return step.state, record


def _rows(
    run: Run, directory: RunDirectory, writer: CheckpointWriter, state: LoopState, clock: Clock
) -> tuple[LoopState, list[Trajectory], dict[str, float]]:
    """The rows of the step after `state`, which is saved if the engine fails for good."""
    with saved_if_sampling_fails(run, state, directory, writer):
        rows = run.source(state, clock)
        run.let_generator_sleep(clock)
        return rows


def _measured(run: Run, state: LoopState, record: Mapping[str, Any], clock: Clock) -> dict[str, float]:
    """The metrics of what is due after the step with this record. If they end the run, everything is measured."""
    config = run.config
    measured = due(config, state.step, is_last=is_over(record, run.max_steps, config.stop_when))
    metrics = measure(run, state, measured, clock)
    if is_over({**record, **metrics}, run.max_steps, config.stop_when):
        metrics |= measure_rest(run, state, measured, clock)
    return metrics


def _is_saved(run: Run, record: Mapping[str, Any], directory: RunDirectory, writer: CheckpointWriter) -> bool:
    """Whether there is a checkpoint after the step with this record: when it is due, the best one, or the last one."""
    settings, number = run.config.checkpoint, record["step"]
    if number % settings.every == 0 or is_over(record, run.max_steps, run.config.stop_when):
        return True
    steps = (*writer.steps_in_flight, number)
    return any(map(is_measurement, record)) and best_of(directory, settings, *steps) == number


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
