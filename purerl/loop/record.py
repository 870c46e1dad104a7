"""Recording a step: metrics, rollouts, samples of completions, evaluations, and warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from attrs import frozen

from purerl.algos.algebra import Algorithm, fingerprint
from purerl.errors import EngineError
from purerl.loop.metrics import time_metrics
from purerl.loop.metrics.throughput import Throughput
from purerl.loop.state import Clock, LoopState
from purerl.loop.step import Step
from purerl.monitoring.trackers.protocol import Tracker
from purerl.monitoring.trackers.trackers import Trackers
from purerl.monitoring.warnings.checks import mismatch_growth
from purerl.monitoring.warnings.run import Monitor
from purerl.rewards.results import component_columns
from purerl.rollouts.types import Trajectory
from purerl.store.directory import RunDirectory
from purerl.store.evaluations import read_evaluation
from purerl.store.records import to_record
from purerl.store.rollouts import Metadata, total_reward, write_rollouts

__all__ = ["StepLog", "log_evaluation_samples"]

_MAX_SAMPLES = 16
T = TypeVar("T")


@frozen
class StepLog:
    """Records steps in `directory` and in `trackers`. `monitor` looks for signs that the run does not learn.

    rollouts_of       the algorithm whose rollouts are stored; None if nothing is sampled
    throughput        the work of the trainers in a step
    ends_on_mismatch  whether a training-inference mismatch that has grown too much ends the run
    """

    directory: RunDirectory
    trackers: Trackers
    monitor: Monitor
    rollouts_of: Algorithm | None
    throughput: Throughput = Throughput()
    ends_on_mismatch: bool = False

    def record(self, number: int, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """The record of step `number`, as it is written to metrics.jsonl."""
        return to_record({"step": number, **metrics}, self.directory.path)

    def timed(self, step: Step, record: Mapping[str, Any], clock: Clock) -> dict[str, Any]:
        """`record` with the seconds and the rates of `step` so far."""
        tokens = 0 if step.batch is None else int(step.batch["action"].sum())
        is_sampling = self.rollouts_of is not None
        times = time_metrics(clock, record.get("rollout/tokens", tokens), is_sampling=is_sampling)
        rates = self.throughput.metrics(step.batch, record.get("rollout/tokens") or 0.0, clock)
        return {**record, **times, **rates}

    def write(self, before: LoopState, step: Step, record: Mapping[str, Any], clock: Clock) -> dict[str, Any]:
        """Write the rollouts and the record of `step`, which began in the state `before`; return the whole record.

        Everything is on disk before trackers get it.

        Raises: EngineError if the training-inference mismatch has grown too much.
        """
        self.directory.check_lock()
        number = step.state.step
        if step.batch is not None and self.rollouts_of is not None:
            with clock("store"):
                metadata = Metadata(fingerprint(self.rollouts_of), before.transform)
                texts = _texts_and_rewards(step.trajectories)
                write_rollouts(self.directory.rollouts, number, step.batch, texts, metadata)
        record = self.timed(step, record, clock)
        self.directory.log(record)
        samples = _evenly([trajectory for trajectory in step.trajectories if trajectory.texts])
        pairs = zip(_texts_and_rewards(samples), samples, strict=True)
        rows = [texts | {"reward": total_reward(sample.fields)} for texts, sample in pairs]
        if rows:  # with the components of a reward after it
            self.trackers.completions(number, [dict(sorted(row.items(), key=_is_component)) for row in rows])
        log_evaluation_samples(self.trackers, number, self.directory.evaluations)
        self.trackers.log(record)
        for warning in self.monitor.observe(record):
            self.trackers.warn(warning.step, warning.name, warning.message)
        history = self.monitor.history
        text = mismatch_growth(history) if self.ends_on_mismatch else None
        if text is not None:
            need = f"at most {history.facts.mismatch_limit:.2g} nats, by generator.max_mismatch_growth"
            do = "look for warnings in the log of the engine, or raise the limit; the same command resumes the run"
            raise EngineError(text, need=need, do=do)
        return record


def _is_component(item: tuple[str, Any]) -> bool:
    return item[0].startswith("reward/")


def log_evaluation_samples(tracker: Tracker, step: int, folder: Path) -> None:
    """Log some completions of the evaluation after `step`, which is stored in `folder`; nothing if there was none."""
    if rows := _evenly(read_evaluation(folder, step)):
        tracker.evaluation_completions(step, rows)


def _texts_and_rewards(trajectories: Sequence[Trajectory]) -> list[dict[str, Any]]:
    """The texts of each row and the values of its reward components, as ``reward/<name>``."""
    components = component_columns([trajectory.result for trajectory in trajectories])
    names = dict.fromkeys(name for trajectory in trajectories for name in trajectory.texts)
    texts = [{name: trajectory.texts.get(name) for name in names} for trajectory in trajectories]
    return [text | values for text, values in zip(texts, components, strict=True)]


def _evenly(rows: Sequence[T]) -> list[T]:
    """At most `_MAX_SAMPLES` of `rows`, at equal distances."""
    return [*rows[:: max(1, len(rows) // _MAX_SAMPLES)][:_MAX_SAMPLES]]
