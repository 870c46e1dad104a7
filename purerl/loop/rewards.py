"""Rewards of a run's completions. Failures are logged, shown once, and stop the run if there are too many."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from textwrap import indent

from attrs import frozen

from purerl.data.examples import DataSet
from purerl.errors import RewardError
from purerl.rewards.adapters import RewardInput
from purerl.rewards.outcomes import Failure, shorten
from purerl.rewards.runner import RewardResult, RewardRunner
from purerl.store.directory import RunDirectory

__all__ = ["RunRewards", "check_columns", "check_failures", "describe_failure"]

_MAX_LOGGED = 20
_MAX_COMPLETION = 2000  # characters

_LOG = logging.getLogger(__name__)


@frozen
class RunRewards:
    """The reward functions of a run, which logs failures in its directory."""

    runner: RewardRunner
    directory: RunDirectory
    max_failure_rate: float

    def __call__(self, inputs: Sequence[RewardInput], *, step: int) -> list[RewardResult]:
        """The result of each of `inputs`, in the same order; `step` is the step that they belong to."""
        results = self.runner(inputs)
        failed = [(i, r.failure) for i, r in zip(inputs, results, strict=True) if r.failure]
        if failed:
            self._log(failed, step)
        return results

    def check(self, results: Sequence[RewardResult]) -> None:
        """Raise RewardError with the first traceback, if too many of `results`, all those of a step, are failures."""
        do = "fix the function, or raise reward_workers.timeout or .max_failure_rate; the run can be resumed"
        check_failures(results, self.max_failure_rate, do=do)

    def _log(self, failed: Sequence[tuple[RewardInput, Failure]], step: int) -> None:
        """Log the first failures of a call; the first failure of the run is also a warning."""
        if not self.directory.failures.exists():
            what = "a reward function failed, and the row is masked out; the first failures of each batch are in %s\n%s"
            _LOG.warning(what, self.directory.failures, describe_failure(failed[0][1]))
        for source, failure in failed[:_MAX_LOGGED]:
            record = {"step": step, "row": source.row, "function": failure.function, "kind": failure.kind}
            completion = shorten(source.completion, _MAX_COMPLETION)
            self.directory.log_failure(record | {"traceback": failure.traceback, "completion": completion})


def check_columns(runner: RewardRunner, data: Iterable[DataSet]) -> None:
    """Raise ConfigError if a reward function reads a column that `data` does not have."""
    for table in (table for each in data for table in each.tables):
        runner.check_columns(table.column_names)


def check_failures(results: Sequence[RewardResult], max_rate: float, *, do: str) -> None:
    """Raise RewardError with the first traceback, if more than `max_rate` of `results` are failures."""
    failures = [result.failure for result in results if result.failure]
    if len(failures) > max_rate * len(results):
        what = f"reward functions failed on too many completions; the first failure:\n{describe_failure(failures[0])}"
        raise RewardError(what, got=f"{len(failures)} of {len(results)}", need=f"at most {max_rate:g} of them", do=do)


def describe_failure(failure: Failure) -> str:
    """The function, what happened, and its traceback."""
    return indent(f"{failure.function} {failure.kind}\n{failure.traceback}".rstrip(), "  | ")
