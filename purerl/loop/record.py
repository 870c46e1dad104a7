"""The one place that records a step: metrics, rollouts, completions, evaluations, and warnings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from purerl.algos.algebra import Algorithm, fingerprint
from purerl.loop.metrics import time_metrics
from purerl.loop.metrics.throughput import Throughput
from purerl.loop.records import to_record
from purerl.loop.shown import log_completions, log_evaluation, texts_and_rewards
from purerl.loop.state import Clock, LoopState
from purerl.loop.step import Step
from purerl.monitoring.trackers.trackers import Trackers
from purerl.monitoring.warnings.run import Monitor
from purerl.store.directory import RunDirectory
from purerl.store.rollouts import Metadata, write_rollouts

__all__ = ["StepLog"]


@frozen
class StepLog:
    """Records steps in `directory` and in `trackers`. `monitor` looks for signs that the run does not learn.

    rollouts_of  the algorithm whose rollouts are stored; None if nothing is sampled
    throughput   what the trainers compute in a step
    """

    directory: RunDirectory
    trackers: Trackers
    monitor: Monitor
    rollouts_of: Algorithm | None
    throughput: Throughput = Throughput()

    def record(self, number: int, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """The record of step `number`, as it is written to metrics.jsonl."""
        return to_record({"step": number, **metrics}, self.directory.path)

    def write(self, before: LoopState, step: Step, record: Mapping[str, Any], clock: Clock) -> dict[str, Any]:
        """Write the rollouts and the record of `step`, which began in the state `before`; return the whole record.

        Everything is on disk before trackers get it.
        """
        self.directory.check_lock()
        number, tokens = step.state.step, 0
        if step.batch is not None:
            tokens = int(step.batch["action"].sum())
            if self.rollouts_of is not None:
                with clock("store"):
                    metadata = Metadata(fingerprint(self.rollouts_of), before.transform)
                    texts = texts_and_rewards(step.trajectories)
                    write_rollouts(self.directory.rollouts, number, step.batch, texts, metadata)
        times = time_metrics(clock, record.get("rollout/tokens", tokens), is_sampling=self.rollouts_of is not None)
        rates = self.throughput.metrics(step.batch, record.get("rollout/tokens") or 0.0, clock)
        record = {**record, **times, **rates}
        self.directory.log(record)
        log_completions(self.trackers, number, step.trajectories)
        log_evaluation(self.trackers, number, self.directory.evaluations)
        self.trackers.log(record)
        for warning in self.monitor.observe(record):
            self.trackers.warn(warning.step, warning.name, warning.message)
        return record
