"""The steps of a run, and what is due after each: an evaluation, records, a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from purerl.config.check import accuracy_rewards_of, named_metrics
from purerl.config.metrics import metric_notes
from purerl.config.preset_names import name_with_preset, preset_of
from purerl.config.requirements import Requirements
from purerl.config.schema import RunConfig, StopWhen
from purerl.config.structure import to_dict
from purerl.config.tables import flat
from purerl.errors import ConfigError, RunStoppedError, nearest
from purerl.evaluation.accuracy import describe_accuracy
from purerl.loop.callbacks import Callbacks, open_calls
from purerl.loop.callbacks.prompt_sampler import open_prompt_sampler
from purerl.loop.record import StepLog, log_evaluation_samples
from purerl.loop.resume import Checkpoints, describe_start, resume
from purerl.loop.run import Run
from purerl.loop.state import Clock, Ending, LoopState
from purerl.loop.step_end import StepEnd
from purerl.monitoring.debugging.steps import debugged
from purerl.monitoring.trackers.open import add_trackers, open_console
from purerl.monitoring.trackers.protocol import RunInfo
from purerl.monitoring.trackers.trackers import Trackers
from purerl.monitoring.warnings.run import Monitor
from purerl.opening.data import describe_data
from purerl.opening.expert_routes import drop_trained
from purerl.opening.model_notes import model_notes
from purerl.placement.join import RankContext
from purerl.rollouts.types import Trajectory
from purerl.store.background import CheckpointWriter
from purerl.store.code import record_code
from purerl.store.directory import RunDirectory
from purerl.store.processes import log_process
from purerl.system.phases import phase

__all__ = ["advance", "remaining_steps"]


def remaining_steps(
    config: RunConfig,
    needs: Requirements,
    run: Run,
    directory: RunDirectory,
    context: RankContext,
    callbacks: Callbacks,
    *,
    code: Mapping[str, str],
) -> dict[str, Any]:
    """Do all remaining steps; return the last record.

    `config` is the configuration with unresolved paths, and `code` has the digests of the user's code.
    """
    ranks = context.ranks
    start = ranks.on_first(lambda: directory.start, "the start of the run")
    ending = Ending(needs.schedule.num_steps(run.task.training.examples.num_rows), config.stop_when, start)
    state = resume(run, directory, config.checkpoint, ranks, ending.max_steps)
    ranks.on_first(partial(record_code, directory.path, code, state.step), "the record of the code")
    ranks.on_first(partial(log_process, directory.path, state.step, ranks.size), "the record of the process")
    records = ranks.on_first(directory.records, "the records of the run")
    with (
        run.task.rewards,
        CheckpointWriter(ranks, background=config.checkpoint.background) as writer,
        _open_console(config, needs, run, directory, state, max_steps=ending.max_steps, past=records[:-1]) as trackers,
        context.report_exit(),
    ):
        with phase("starting the workers of reward functions"):
            run.task.rewards.start(run.engines.runtime.run_here)
        options = {"evaluate": config.evaluation, "rollout": config.rollout, "seed": config.seed}
        calls = open_calls(callbacks, open_prompt_sampler(run.task, run.engines, **options), run, directory)
        end = StepEnd(run.measures, calls, ending, ranks)
        if not records:
            record, _ = end.evaluate(state, {"step": 0}, Clock())
            records = [record]
            directory.log(record)
        record = records[-1]
        log = _open_log(config, run, directory, trackers, records)
        checkpoints = Checkpoints(run, directory, config.checkpoint, writer, ranks)
        check_metrics = partial(_check_metrics, config.stop_when, config.checkpoint.best)
        names = {name for each in records for name in each}
        check_metrics(names)
        first_step = "the first step" + (", with compilation" if getattr(config.trainer, "compile", False) else "")
        while not ending.is_over(record):
            if any(ranks.gather(callbacks.should_stop() or writer.has_failed, "whether to stop")):
                checkpoints.save_before_stop(state)
                calls.after_checkpoints(record, writer.take_written())
                what = f"{str(directory.path)!r}: stopped after step {state.step}"
                raise RunStoppedError(what, do="the same command resumes the run")
            with debugged(config.debug, directory.path, state.step + 1) if directory.is_owner else nullcontext():
                with phase(first_step) if first_step else nullcontext():
                    state, record = advance(run, state, log, checkpoints, end)
                first_step = ""
            calls.after_checkpoints(record, writer.take_written())
            names.update(record)
            check_metrics(names)
        writer.wait()
        calls.after_checkpoints(record, writer.take_written())
        calls.warn_of_lost_requests()
    return record


def _open_console(
    config: RunConfig,
    needs: Requirements,
    run: Run,
    directory: RunDirectory,
    state: LoopState,
    *,
    max_steps: int,
    past: Sequence[Mapping[str, Any]],
) -> Trackers:
    """The console; on a rank without the run directory nothing."""
    if not directory.is_owner:
        return Trackers()
    accuracy = describe_accuracy(accuracy_rewards_of(config))
    models = model_notes(needs.models, run.engines.capabilities().trainers)
    preset = preset_of(config.algorithm)
    lines = [preset and f"algorithm: {name_with_preset(config.algorithm)}", describe_data(run.task), *models]
    lines += [
        describe_start(state, directory),
        accuracy and f"accuracy: {accuracy}",
        *metric_notes(named_metrics(config)),
    ]
    title, note = f"{preset or config.algorithm}, {config.model.path}", "\n".join(filter(None, lines))
    return open_console(config.name, max_steps, title=title, note=note, history=past)


def _open_log(
    config: RunConfig, run: Run, directory: RunDirectory, trackers: Trackers, records: Sequence[Mapping[str, Any]]
) -> StepLog:
    """The log of the remaining steps. The trackers of `config` are added to the console, and get the last record.

    A run that starts from another one has a past that they do not know yet.
    """
    record = records[-1]
    if directory.is_owner:
        origin = directory.origin
        is_new = origin is not None and origin["step"] == record["step"]
        history, first = records[:-1] if is_new else [], records[0 if is_new else -1]["step"]
        info = partial(RunInfo, config.name, directory.identity, settings=flat(to_dict(config)), first=first)
        folder, every = directory.path / "trackers", config.checkpoint.every
        add_trackers(trackers, config.trackers, folder=folder, run_info=info, every=every, history=history)
    log_evaluation_samples(trackers, record["step"], directory.evaluations)
    trackers.log(record)
    return StepLog(
        directory,
        trackers,
        Monitor.of_run(directory.path, records),
        run.learner.algorithm if config.rollout else None,
        run.learner.throughput,
        ends_on_mismatch=getattr(config.generator, "max_mismatch_growth", None) is not None,
    )


def advance(
    run: Run, state: LoopState, log: StepLog, checkpoints: Checkpoints, end: StepEnd
) -> tuple[LoopState, dict[str, Any]]:
    """One step, and what is due after it: new weights, callbacks, an evaluation, records, a checkpoint."""
    clock, number, ranks, ending = Clock(), state.step + 1, checkpoints.ranks, end.ending
    with clock("step"), run.time_generation(clock):
        step = run.learner.step(state, partial(_rows, run, checkpoints), clock)
        if ranks.is_first:
            drop_trained(run.source.window.waiting, run.source.routes)
        run.learner.update_followers(number, clock)
        run.engines.load_weights(number, clock)
    timed = partial(log.timed, step, clock=clock)
    record, asked = end.report(lambda: log.record(number, step.metrics), timed)
    record, later = end.evaluate(step.state, record, clock, timed=timed, everything=asked.evaluate)

    def write() -> tuple[dict[str, Any], bool]:
        written = log.write(state, step, record, clock)
        is_due = checkpoints.is_due(written, is_last=ending.is_over(written))
        return written, is_due or asked.save or later.save

    written, is_saved = ranks.on_first(write, "the record of a step")
    if is_saved:
        checkpoints.save(step.state)
    return step.state, written


def _rows(
    run: Run, checkpoints: Checkpoints, state: LoopState, clock: Clock
) -> tuple[LoopState, list[Trajectory], dict[str, float]]:
    """The rows of the step after `state`, which is saved if the engine fails for good."""
    with checkpoints.saved_if_sampling_fails(state):
        rows = run.source(state, clock)
        run.engines.sleep_generator(clock)
        return rows


def _check_metrics(stop_when: StopWhen | None, best: str | None, names: Collection[str]) -> None:
    """Refuse metrics of settings that are not in `names`, those of all records, once they should be.

    The metrics of an evaluation are in the first record with an accuracy, which an evaluation without any reward does
    not have; those of a validation in the first one with its loss; all others in that of the first policy update.
    """
    signs = {"eval": "eval/accuracy", "validation": "validation/loss"}
    for key, metric in {"stop_when.metric": stop_when and stop_when.metric, "checkpoint.best": best}.items():
        if metric and metric not in names:
            sign = signs.get(metric.partition("/")[0], "policy/loss/")
            if any(name.startswith(sign) for name in names):
                raise ConfigError(key, got=metric, need="a metric of the run", do=nearest(metric, names))
