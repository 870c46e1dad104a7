"""The failures of a run: they are counted, logged at once, and the first one is shown."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from attrs import define, field

from purerl.rewards.outcomes import FailedPart, shorten
from purerl.rollouts.failures import FailureLimit, MissingSample, describe_failure, missing_samples, remedy
from purerl.rollouts.types import Group
from purerl.store.directory import RunDirectory

__all__ = ["RunFailures"]

_MAX_LOGGED = 20
_MAX_COMPLETION = 2000  # characters
_LIMITS: Mapping[FailedPart, str] = {
    "reward": "reward_workers.timeout or .max_failure_rate",
    "environment": "environment.timeout or reward_workers.max_failure_rate",
    "engine": "reward_workers.max_failure_rate",
    "workflow": "reward_workers.max_failure_rate",
    "data": "reward_workers.max_failure_rate",
}
"""The settings that decide when there are too many failures of each part."""

_LOG = logging.getLogger(__name__)


def _remedy_of_run(part: FailedPart) -> str:
    """Advice on failures of `part` in a run."""
    return f"{remedy(part)}, or raise {_LIMITS[part]}; the run can be resumed"


@define
class RunFailures:
    """The failures of a run: each step, and each evaluation, has a limit of its own.

    samples   number of samples of a group
    max_rate  the share of the completions of a step that may fail
    """

    directory: RunDirectory
    samples: int
    max_rate: float
    _step: int = 0
    _limit: FailureLimit = field(default=FailureLimit(1.0, _remedy_of_run), init=False)

    def start(self, step: int) -> None:
        """Failures from now on are those of `step`."""
        self._step, self._limit = step, FailureLimit(self.max_rate, _remedy_of_run)

    def expect(self, rows: int) -> None:
        """The step has `rows` more completions."""
        self._limit.expected += rows

    def add(self, group: Group) -> None:
        """Count and log the failures of `group`. Raises RewardError or RolloutError as soon as there are too many."""
        self._limit.scored += self.samples
        for missing in missing_samples(group, self.samples):
            self.add_missing(missing)

    def add_missing(self, missing: MissingSample) -> None:
        """Count and log a sample of a group that `add` has counted already. Raises as `add`."""
        if self._limit.count < _MAX_LOGGED:
            self._write(missing)
        self._limit.add(missing.failure)

    def _write(self, missing: MissingSample) -> None:
        """Log a failure; the first one of the run is also a warning."""
        failure = missing.failure
        if self.directory.is_owner and not self.directory.failures.exists():
            what = "a sample is missing, and its row is masked out; the first failures of each step are in %s\n%s"
            _LOG.warning(what, self.directory.failures, describe_failure(failure))
        record = {"step": self._step, "row": missing.name, "function": failure.function, "kind": failure.kind}
        completion = shorten(missing.completion, _MAX_COMPLETION)
        self.directory.log_failure(record | {"traceback": failure.traceback, "completion": completion})
