"""Rewards of a run's completions. Failures are logged at once, shown once, and stop the run if there are too many."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from attrs import frozen

from purerl.data.examples import DataSet
from purerl.loop.failures import FailureLimit, describe_failure
from purerl.rewards.adapters import RewardInput
from purerl.rewards.outcomes import Failure, shorten
from purerl.rewards.runner import RewardResult, RewardRunner
from purerl.store.directory import RunDirectory

__all__ = ["RunRewards", "StepRewards", "check_columns"]

_MAX_LOGGED = 20
_MAX_COMPLETION = 2000  # characters
_DO = "fix the function, or raise reward_workers.timeout or .max_failure_rate; the run can be resumed"

_LOG = logging.getLogger(__name__)


@frozen
class RunRewards:
    """The reward functions of a run, which logs failures in its directory."""

    runner: RewardRunner
    directory: RunDirectory
    max_failure_rate: float

    def of_step(self, step: int, *, rows: int = 0) -> StepRewards:
        """The reward functions for the completions of `step`, or of an evaluation at `step`.

        `rows` is the number of these completions, as far as it is known before they are scored.
        """
        return StepRewards(self, step, FailureLimit(self.max_failure_rate, _DO, expected=rows))


@frozen
class StepRewards:
    """Scores the completions of one step, or of one evaluation, in one or more calls."""

    run: RunRewards
    step: int
    limit: FailureLimit

    def __call__(self, inputs: Sequence[RewardInput]) -> list[RewardResult]:
        """The result of each of `inputs`, in the same order.

        Raises: RewardError with the first failure, as soon as there are too many in all calls together.
        """
        self.limit.scored += len(inputs)
        before = self.limit.count

        def on_failure(source: RewardInput, failure: Failure) -> None:
            if self.limit.count - before < _MAX_LOGGED:
                self._log(source, failure)
            self.limit.add(failure)

        return self.run.runner(inputs, on_failure)

    def _log(self, source: RewardInput, failure: Failure) -> None:
        """Log a failure; the first one of the run is also a warning."""
        directory = self.run.directory
        if not directory.failures.exists():
            what = "a reward function failed, and the row is masked out; the first failures of each batch are in %s\n%s"
            _LOG.warning(what, directory.failures, describe_failure(failure))
        record = {"step": self.step, "row": source.row, "function": failure.function, "kind": failure.kind}
        completion = shorten(source.completion, _MAX_COMPLETION)
        directory.log_failure(record | {"traceback": failure.traceback, "completion": completion})


def check_columns(runner: RewardRunner, data: Iterable[DataSet]) -> None:
    """Raise ConfigError if a reward function reads a column that `data` does not have."""
    for table in (table for each in data for table in each.tables):
        runner.check_columns(table.column_names)
