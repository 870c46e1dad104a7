"""Samples that are missing because an engine, a reward function or an environment failed.

They are counted, logged at once, and the first one of a run is shown. Too many of them stop the run.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from textwrap import indent
from typing import NamedTuple

from attrs import define, field

from purerl.errors import RewardError, RolloutError
from purerl.rewards.outcomes import FailedPart, Failure, shorten
from purerl.rollouts.episode_rows import samples_of
from purerl.rollouts.types import Group
from purerl.store.directory import RunDirectory

__all__ = ["FailureLimit", "MissingSample", "RunFailures", "describe_failure", "fix", "missing_samples", "tolerated"]

_ALWAYS_TOLERATED = 3
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


def tolerated(max_rate: float, rows: int) -> float:
    """How many failures are tolerated on `rows` completions.

    A rate says little about a few completions. So three failures are always tolerated, but at most on half of the
    completions. With the rate 0 none is.

    >>> tolerated(0.1, 1), tolerated(0.1, 4), tolerated(0.1, 16), tolerated(0.1, 100), tolerated(0.0, 100)
    (0.5, 2.0, 3, 10.0, 0.0)
    """
    return max(max_rate * rows, min(_ALWAYS_TOLERATED, rows / 2)) if max_rate else 0.0


class MissingSample(NamedTuple):
    """A sample without a reward because of `failure`: its name, and its text as far as it is known."""

    name: str
    failure: Failure
    completion: str


def missing_samples(group: Group, samples: int) -> Iterator[MissingSample]:
    """Those of the `samples` of `group` that failed, each once. If its workflow failed, all are missing."""
    for k, rows in enumerate(samples_of(group.trajectories)):
        failed = [row for row in rows if row.result.failure is not None]
        if failed:
            text = failed[-1].texts.get("completion", "")
            yield MissingSample(f"{group.draw}/{k}", failed[0].result.failure, text)
    for k in range(samples if group.failure else 0):
        yield MissingSample(f"{group.draw}/{k}", group.failure, "")


@define
class FailureLimit:
    """Counts failures on completions that belong together, such as those of a step.

    max_rate  the share of the completions that may fail, see `tolerated`
    remedy    what to do if there are too many: a function of what has failed most often
    expected  number of completions, as far as it is known before they are scored
    scored    number of completions so far
    count     number of failures so far
    """

    max_rate: float
    remedy: Callable[[FailedPart], str]
    expected: int = 0
    scored: int = 0
    count: int = 0
    _by_part: dict[FailedPart, list[Failure]] = field(factory=dict)

    def add(self, failure: Failure) -> None:
        """Count `failure`.

        Raises: RewardError, or RolloutError if something else than reward functions failed most often, as soon as there
        are too many. The message has the first such failure.
        """
        self.count += 1
        self._by_part.setdefault(failure.part, []).append(failure)
        rows = max(self.expected, self.scored)
        limit = tolerated(self.max_rate, rows)
        if self.count > limit:
            part = max(self._by_part, key=lambda part: len(self._by_part[part]))
            error = RewardError if part == "reward" else RolloutError
            raise error(
                f"too many completions failed; the first failure:\n{describe_failure(self._by_part[part][0])}",
                got=f"{self.count} of {rows} already",
                need=f"at most {math.floor(limit)}, with max_failure_rate = {self.max_rate:g}",
                do=self.remedy(part),
            )


def fix(part: FailedPart) -> str:
    """What to do about failures of `part`.

    >>> fix("reward"), fix("environment")
    ('fix the function, its server or the example', 'fix the environment')
    """
    fixes = {"reward": "fix the function, its server or the example", "engine": "see the message of the engine"}
    return fixes.get(part, f"fix the {part}")


def _fix_or_tolerate(part: FailedPart) -> str:
    """What to do about failures of `part` in a run."""
    return f"{fix(part)}, or raise {_LIMITS[part]}; the run can be resumed"


def describe_failure(failure: Failure) -> str:
    """What failed, what happened, and its traceback."""
    return indent(f"{failure.function} {failure.kind}\n{failure.traceback}".rstrip(), "  | ")


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
    _limit: FailureLimit = field(default=FailureLimit(1.0, _fix_or_tolerate), init=False)

    def start(self, step: int) -> None:
        """Failures from now on are those of `step`."""
        self._step, self._limit = step, FailureLimit(self.max_rate, _fix_or_tolerate)

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
